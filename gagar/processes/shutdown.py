"""Ctrl-C and SIGTERM for commands that have something to stop: the first asks, the second ends the process at once."""

import asyncio
import signal

EXIT_INTERRUPTED = 130


def interruption() -> asyncio.Event:
    """Set by the first Ctrl-C or SIGTERM; a second one ends the process at once."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(number: int) -> None:
        event.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, note, number)
    return event
