"""Growth of a stage's memory over a run, and what counts as flat."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.chaos import memory
from tests.chaos.memory import MIB, Growth, MemorySample, grown, growth, watch_memory
from tests.chaos.plan import SOAK_GROUPS, STAGE_NAMES
from tests.chaos.report import Report
from tests.unit.test_chaos_schedule import full_log, make_course


def make_samples(name: str, *mib: float) -> list[MemorySample]:
    """One a second."""
    return [MemorySample(float(at), name, int(held * MIB)) for at, held in enumerate(mib)]


def test_growth_compares_the_medians_of_the_first_and_the_last_tenth() -> None:
    samples = make_samples("grader", *[40.0] * 9, 90.0, 41.0, *[500.0] * 79, *[60.0] * 10, 700.0)
    assert growth(samples) == {"grader": Growth(40.0, 60.0)}


def test_the_tenths_are_of_the_run_not_of_a_stage() -> None:
    grader = [MemorySample(50.0 + sample.at, "grader", sample.rss_bytes) for sample in make_samples("grader", *[40.0] * 51)]
    samples = sorted([*make_samples("verifier", *[50.0] * 101), *grader], key=lambda sample: sample.at)
    assert set(growth(samples)) == {"verifier"}


def test_no_samples_no_growth() -> None:
    assert growth([]) == {}


@pytest.mark.parametrize(
    ("first_mib", "last_mib", "is_flat"),
    [(50.0, 50.0, True), (50.0, 61.0, False), (50.0, 59.0, True), (200.0, 220.0, True), (50.0, 20.0, True)],
)
def test_growth_is_a_fault_beyond_both_bounds(first_mib: float, last_mib: float, is_flat: bool) -> None:
    told = f"grader: expected at most 1.15 times {first_mib:.1f} MiB in the last tenth, got {last_mib:.1f} MiB"
    assert grown({"grader": Growth(first_mib, last_mib)}, ["grader"]) == ([] if is_flat else [told])


def test_a_stage_without_samples_is_not_flat() -> None:
    assert grown({}, ["grader"]) == ["grader: expected samples in the first and in the last tenth, got none"]


async def test_samples_leave_out_what_starts_and_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    samples: list[MemorySample] = []

    async def watch_for_a_moment() -> None:
        task = asyncio.create_task(watch_memory(lambda: {"driver": [os.getpid()], "gone": [2**22 + 1]}, samples))
        await asyncio.sleep(0)
        task.cancel()

    monkeypatch.setattr(memory, "STARTING_S", 1e9)
    await watch_for_a_moment()
    assert samples == []
    monkeypatch.setattr(memory, "STARTING_S", 0.0)
    await watch_for_a_moment()
    assert [sample.name for sample in samples] == ["driver"]
    assert samples[0].rss_bytes > MIB


@pytest.mark.parametrize(("num_groups", "is_judged"), [(SOAK_GROUPS, True), (SOAK_GROUPS - 1, False)])
def test_only_a_long_run_is_judged_by_its_memory(tmp_path: Path, num_groups: int, is_judged: bool) -> None:
    course = make_course(full_log(), tmp_path)
    found = {**dict.fromkeys(STAGE_NAMES, Growth(50.0, 50.0)), "learner": Growth(50.0, 100.0), "broker": Growth(100.0, 400.0)}
    plan = msgspec.structs.replace(course.plan, num_groups=num_groups)
    report = make_report(msgspec.structs.replace(course, plan=plan, memory=found))
    assert set(report.faults) == ({"fire: memory"} if is_judged else set())
    assert report.figures["memory_growth"]["learner"] == 2.0
    assert report.figures["memory_mib"]["broker"] == [100.0, 400.0]
    assert "learner" in str(report)


def test_without_the_undisturbed_run_nothing_is_compared(tmp_path: Path) -> None:
    figures: Any = json.loads(msgspec.json.encode(make_report(make_course(full_log(), tmp_path)).figures))
    assert not {"differences", "undisturbed_s"} & set(figures)
    assert figures["faults"] == []


def make_report(course: Any) -> Report:
    return Report(calm=None, fire=course, duration_s=1.0, driver_peak_bytes=0)
