"""Tasks that belong together: the first failure ends all of them.

A cancellation that nobody here asked for (a client's own task was cancelled, and its futures with it) is a failure too: else
the task that met it would be gone without a word.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from gagar.errors import UnavailableError

T = TypeVar("T")


@contextmanager
def told_of_cancellation(what: str) -> Iterator[None]:
    """Turns a cancellation that this task was not asked for into an UnavailableError."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UnavailableError(f"{what}: expected to go on, got cancelled from within") from error


async def _watched(coroutine: Coroutine[Any, Any, None]) -> None:
    with told_of_cancellation(getattr(coroutine, "__qualname__", repr(coroutine))):
        await coroutine


async def together(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Runs all until all have returned; a failure cancels the others and is raised once they have ended."""
    tasks = [asyncio.create_task(_watched(coroutine)) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def bounded(coroutine: Coroutine[Any, Any, Any], timeout_s: float | None) -> bool:
    """Whether it ended in time (none: any); it is cancelled if not. What it raises is left to the caller."""
    try:
        async with asyncio.timeout(timeout_s):
            await coroutine
    except TimeoutError:
        return False
    return True


async def gathered(awaitables: Iterable[Awaitable[Any]]) -> None:
    """Until all have ended, however they end."""
    await asyncio.gather(*awaitables, return_exceptions=True)


async def until(stop: asyncio.Event, coroutine: Coroutine[Any, Any, object]) -> None:
    """Runs until `stop` is set or the coroutine ends; what it raises is raised. It has ended when this returns."""
    running, stopping = asyncio.create_task(coroutine), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()
        stopping.cancel()
        await gathered((running, stopping))
    if not running.cancelled():
        running.result()


def run_apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end in a thread with a loop of its own, since this thread may have one."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
