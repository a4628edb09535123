"""A time in the past at the command line: how long ago it was, or when."""

import re
import time
from datetime import UTC, datetime

import click

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
AGO = re.compile(r"([0-9]{1,9})([smhd])")


def since_time(context: click.Context | None, option: click.Parameter | None, text: str | None) -> float:
    """A click callback: `30m`, `2h`, `1d` (so long ago) or an ISO time, of UTC unless it names another zone, as Unix seconds; 0
    if nothing was said. Raises click.BadParameter for another form and for a time that is no past."""
    if text is None:
        return 0.0
    now = time.time()
    match = AGO.fullmatch(text)
    at = now - int(match[1]) * UNITS_S[match[2]] if match else _at(text)
    if at is None or not 0 < at <= now:
        raise click.BadParameter(f"expected a time in the past as 90s, 30m, 2h, 1d or 2026-01-31T12:00, got {text!r}")
    return at


def _at(text: str) -> float | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
