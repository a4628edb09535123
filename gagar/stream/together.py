"""Tasks that belong together: the first failure ends all of them."""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any


async def together(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Runs all until all have returned; a failure cancels the others and is raised once they have ended."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def bounded(coroutine: Coroutine[Any, Any, Any], timeout_s: float) -> bool:
    """Whether it ended in time; it is cancelled if not. What it raises is left to the caller."""
    try:
        async with asyncio.timeout(timeout_s):
            await coroutine
    except TimeoutError:
        return False
    return True


async def gathered(awaitables: Iterable[Awaitable[Any]]) -> None:
    """Until all have ended, however they end."""
    await asyncio.gather(*awaitables, return_exceptions=True)


async def until(stop: asyncio.Event, coroutine: Coroutine[Any, Any, None]) -> None:
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
