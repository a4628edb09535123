"""Tasks that belong together."""

import asyncio

import pytest

from gagar.errors import UnavailableError
from gagar.stream.together import bounded, gathered, together, until


async def forever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("ended")


async def failing() -> None:
    await asyncio.sleep(0)
    raise ValueError("first")


async def test_a_failure_ends_the_others_first() -> None:
    ended: list[str] = []
    with pytest.raises(ValueError, match="first"):
        await together(forever(ended), failing(), forever(ended))
    assert ended == ["ended", "ended"]


async def test_all_may_return() -> None:
    await together(asyncio.sleep(0), asyncio.sleep(0))


async def test_until_ends_what_runs_when_it_is_told_to_stop() -> None:
    stop, ended = asyncio.Event(), list[str]()
    asyncio.get_running_loop().call_soon(stop.set)
    await until(stop, forever(ended))
    assert ended == ["ended"]


async def test_until_raises_what_was_raised_before() -> None:
    with pytest.raises(ValueError, match="first"):
        await until(asyncio.Event(), failing())


async def test_a_bounded_wait_says_whether_it_was_enough() -> None:
    assert await bounded(asyncio.sleep(0), 5.0)
    assert not await bounded(asyncio.Event().wait(), 0.001)


async def test_gathering_waits_for_all_however_they_end() -> None:
    ended: list[str] = []
    waiting = asyncio.create_task(forever(ended))
    asyncio.get_running_loop().call_soon(waiting.cancel)
    await gathered([failing(), waiting])
    assert ended == ["ended"]


async def test_a_task_cancelled_from_within_ends_the_others_with_an_error() -> None:
    async def cancelled_by_a_client() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with asyncio.timeout(5):
        with pytest.raises(UnavailableError, match=r"cancelled_by_a_client: expected to go on, got cancelled from within"):
            await together(cancelled_by_a_client(), asyncio.Event().wait())  # type: ignore[arg-type]
