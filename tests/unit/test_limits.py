"""Waits, counts and limits."""

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.errors import GagarError
from gagar.stream.limits import Counters, DeadLetterLimits, RuntimeLimits, log_counts


@given(st.integers(1, 10_000))
def test_a_wait_grows_and_is_bounded(num_failures: int) -> None:
    limits = RuntimeLimits(backoff_s=0.2, max_backoff_s=15.0)
    ceiling = min(15.0, 0.2 * 2.0 ** min(num_failures - 1, 20))
    assert ceiling / 2 <= limits.backoff(num_failures) <= ceiling


def test_a_run_of_dead_letters_stops_the_stage() -> None:
    limits = DeadLetterLimits("stage", RuntimeLimits(max_dead_run=3))
    for _ in range(5):
        for _ in range(3):
            limits.note(True)
        limits.note(False)
    for _ in range(3):
        limits.note(True)
    with pytest.raises(GagarError, match="expected at most 3 dead letters in a row and 25% of 256, got 4 in a row"):
        limits.note(True)


def test_a_share_of_dead_letters_stops_the_stage() -> None:
    limits = DeadLetterLimits("stage", RuntimeLimits(dead_share=0.25, dead_share_of=40))
    for _ in range(9):
        limits.note(True)
        for _ in range(3):
            limits.note(False)
    for _ in range(3):
        limits.note(True)
    with pytest.raises(GagarError, match="got 4 in a row and 13"):
        limits.note(True)


async def test_counters_are_logged_when_they_have_changed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    counters = Counters()
    task = asyncio.create_task(log_counts("stage", counters, every_s=0.001))
    await asyncio.sleep(0.01)
    assert not caplog.records
    counters.delivered = 5
    while not caplog.records:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    task.cancel()
    [record] = caplog.records
    assert "stage=stage delivered=5 finished=0" in record.getMessage()
