"""Waits, counts and limits."""

import asyncio
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gagar.config import StreamTable
from gagar.errors import GagarError
from gagar.stream.limits import Counters, DeadLetterLimits, RuntimeLimits, log_counts
from tests.runs import make_run
from topology.resources import Resources


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


def test_the_run_file_sets_what_a_stage_holds_and_how_long_a_transaction_takes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    stream = StreamTable(window=3, max_input_bytes=1, max_output_bytes=2, max_transaction_bytes=4)
    run = replace(run, stream=stream, kafka=replace(run.kafka, transaction_timeout_s=90.0))
    limits = Resources(run).limits(drain_s=5.0)
    assert [getattr(limits, name) for name in StreamTable.__struct_fields__] == [3, 1, 2, 4]
    assert (limits.transaction_timeout_s, limits.last_timeout_s, limits.drain_s) == (90.0, 162.0, 5.0)
    assert Resources(make_run(tmp_path)).limits() == RuntimeLimits()
