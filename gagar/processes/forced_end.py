"""A stage's process ends in time: at once while it starts, as nothing is in work then; later the first signal asks it to stop
when its work has ended, the second one to stop at once, and a timer behind each ends what hangs."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gagar.config import DRAIN_S

logger = logging.getLogger(__name__)

END_S = 10.0
"""From the end of the work, or the second signal, to the end of the process, whatever hangs."""
_timers: list[threading.Timer] = []


def stop_event(
    is_at_work: Callable[[], bool] = lambda: True, drain_s: float = DRAIN_S, stop_at_once: Callable[[], None] = lambda: None
) -> asyncio.Event:
    """Set by SIGTERM or SIGINT; from then on the process has `drain_s` and END_S to end, or is ended. A second signal calls
    `stop_at_once`, and leaves END_S. A process that is not yet at work ends at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal(name: str) -> None:
        if not is_at_work():
            end_at_once()
        if not stop.is_set():
            logger.info("stopping on %s when work in progress has ended, within drain_s=%g", name, drain_s)
            stop.set()
            end_by_force_after(drain_s + END_S)
        else:
            logger.info("stopping at once on %s", name)
            stop_at_once()
            end_by_force_after(END_S)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    return stop


def end_at_once() -> None:
    """Ends a process that has begun nothing: what it loads in threads would only be waited for."""
    logger.info("stopped before the work began")
    logging.shutdown()
    os._exit(0)


def end_by_force_after(seconds: float) -> None:
    """Bounds a stop: clients and threads may hang when no broker answers. The end of `called_off` calls it off."""

    def end() -> None:
        logger.error("stop took too long, ended by force after_s=%g", seconds)
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    _timers.append(timer)


@contextmanager
def called_off() -> Iterator[None]:
    """Calls the end by force off when the work inside has ended by itself."""
    try:
        yield
    finally:
        while _timers:
            _timers.pop().cancel()
