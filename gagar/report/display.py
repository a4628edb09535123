"""Where a watched run is shown: redrawn in place on a terminal, as lines elsewhere.

In: `Screen`s. Out: stdout. Nothing is kept.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from gagar.report.terminal import Screen, plain_line, render
from gagar.report.watch import Display

REFRESH_S = 0.5
"""Between two pictures on a terminal."""
LINE_S = 5.0
"""Between two lines elsewhere."""


@contextmanager
def display_on(console: Console) -> Iterator[Display]:
    """The display that fits what stdout is."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield LineDisplay(console)
        return
    # Lines for stderr go above the picture, if that is where they would be seen.
    is_shared = sys.stderr.isatty()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop", redirect_stderr=is_shared) as live:
        yield LiveDisplay(live, is_unicode="utf" in console.encoding.lower())


class LineDisplay:
    """A line for each moment, for logs."""

    interval_s = LINE_S

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, screen: Screen) -> None:
        self._console.print(plain_line(screen), markup=False, soft_wrap=True)
        self._console.file.flush()


class LiveDisplay:
    """One picture, drawn over the one before."""

    interval_s = REFRESH_S

    def __init__(self, live: Live, is_unicode: bool) -> None:
        self._live = live
        self._is_unicode = is_unicode

    def show(self, screen: Screen) -> None:
        self._live.update(render(screen, self._is_unicode), refresh=True)
