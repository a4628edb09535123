"""Processes that only one test has started, seen from the host, whatever hides them from each other."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path


def all_with(argument: str) -> list[int]:
    """Numbers of the processes of this machine that have it among their arguments."""
    found: list[int] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if argument.encode() in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
    return found


def num_with(argument: str) -> int:
    """How many there are."""
    return len(all_with(argument))


async def wait_for(argument: str, number: int) -> None:
    """Until there are so many; fails after 20 s."""
    deadline = time.monotonic() + 20
    while num_with(argument) != number:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
