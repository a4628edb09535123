"""Ctrl-C, SIGTERM and a closed terminal, for commands that have something to stop: the first signal asks, a second Ctrl-C or
SIGTERM tells to hurry if there is something to hurry, and else ends the process at once."""

import asyncio
import os
import signal
from collections.abc import Callable

EXIT_INTERRUPTED = 130


def lead_nowhere(*descriptors: int) -> None:
    """What is written to these descriptors from now on is lost, without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def interruption(hurry: Callable[[], None] | None = None) -> asyncio.Event:
    """Set by the first Ctrl-C, SIGTERM or hang-up of the terminal, which takes no more output then. The next Ctrl-C or SIGTERM
    calls `hurry`; the one after it, or after the first if there is nothing to hurry, ends the process at once."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def note(number: int) -> None:
        if event.is_set() and hurry is not None:
            hurry()
        if event.is_set() or hurry is None:
            loop.remove_signal_handler(number)
        event.set()

    def hang_up() -> None:
        event.set()
        lead_nowhere(*terminals)
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # one that comes after the loop has closed would kill

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, note, number)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup sets it
        loop.add_signal_handler(signal.SIGHUP, hang_up)
    return event
