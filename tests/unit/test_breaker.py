"""The breaker: nothing is failed on account of an outage."""

import asyncio

from gagar.errors import UnavailableError
from gagar.stream.lanes.breaker import Breaker
from gagar.stream.limits import Counters, RuntimeLimits

OUTAGE = UnavailableError("engine: expected to run, got nothing")
LIMITS = RuntimeLimits(backoff_s=0.0, breaker_threshold=3)


def make_breaker(counters: Counters | None = None) -> Breaker:
    return Breaker("stage", LIMITS, counters or Counters())


async def test_outages_in_a_row_open_it_and_a_success_closes_it() -> None:
    counters = Counters()
    breaker = make_breaker(counters)
    for _ in range(2):
        breaker.failed("r", OUTAGE)
    breaker.succeeded()
    for _ in range(3):
        assert not breaker.is_open
        breaker.failed("r", OUTAGE)
    assert breaker.is_open
    assert counters.breaker_open
    assert counters.retries == 5
    breaker.succeeded()
    assert not breaker.is_open
    assert not counters.breaker_open
    await breaker.wait_closed()


async def test_while_it_is_open_one_probes_and_the_others_wait_for_it() -> None:
    breaker = make_breaker()
    for _ in range(3):
        breaker.failed("r", OUTAGE)
    assert await breaker.wait_turn(1)
    others = [asyncio.create_task(breaker.wait_turn(1)) for _ in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in others)
    breaker.succeeded()
    breaker.release()
    assert await asyncio.gather(*others) == [False, False, False]


async def test_a_probe_that_failed_gives_its_place_to_the_next() -> None:
    breaker = make_breaker()
    for _ in range(3):
        breaker.failed("r", OUTAGE)
    assert await breaker.wait_turn(1)
    waiting = asyncio.create_task(breaker.wait_turn(1))
    await asyncio.sleep(0)
    breaker.failed("r", OUTAGE)
    breaker.release()
    assert await waiting
    breaker.release()


async def test_a_first_try_waits_for_nothing_while_it_is_closed() -> None:
    assert not await make_breaker().wait_turn(0)
