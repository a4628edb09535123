"""Which events come when, and that the stream goes on until each kind has happened."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import make_version
from tests.chaos.events import Arena
from tests.chaos.facts import Facts
from tests.chaos.handlers import HELD_EVERY_S, NUM_HELD, Asking, Scene
from tests.chaos.judge import Judgement
from tests.chaos.plan import STAGE_NAMES, Plan
from tests.chaos.report import Report, never_came
from tests.chaos.restarts import Waste
from tests.chaos.running import Course, Log
from tests.chaos.schedule import CLUSTER_KINDS, KINDS, TAKEN_OVER, Kind, Schedule, fire_one, kinds_of
from tests.chaos.tampering import Markers, Trace

NUM_GROUPS = 125


def make_plan(directory: Path) -> Plan:
    return Plan(
        servers="",
        name="fire",
        directory=str(directory),
        seed=1,
        num_groups=NUM_GROUPS,
        lossy_deadline_s=1.0,
        groups_per_s=1e9,
        started_at=0.0,
    )


def make_course(log: Log, directory: Path) -> Course:
    nothing: dict[str, list[str]] = {name: [] for name in Judgement.__struct_fields__}
    return Course(
        plan=make_plan(directory),
        facts=Facts(),
        judgement=Judgement(**nothing),
        log=log,
        waste=Waste(num_reran=0, begun_after_loss=[]),
        memory={},
        stream_s=1.0,
        is_complete=True,
    )


def full_log() -> Log:
    """Every kind of event has happened."""
    log = Log()
    for kind in KINDS:
        log.told(kind.name, "learner", happened=True)
    log.num_kept = 1
    return log


def test_a_schedule_fires_every_kind_first_and_comes_to_every_stage() -> None:
    schedule = Schedule(random.Random(1))
    fired = [event for _ in range(200) if (event := schedule.next(())) is not None]
    first = fired[: len(KINDS) + 1]
    assert {kind.name for kind, _ in first} == {kind.name for kind in KINDS}
    assert ("kill", "learner") in {(kind.name, target) for kind, target in first}
    assert {target for _, target in fired} == {*STAGE_NAMES, "broker"}


def test_a_schedule_waits_rather_than_hit_what_is_busy() -> None:
    schedule = Schedule(random.Random(1))
    assert [schedule.next({*STAGE_NAMES, "broker"}) for _ in range(5)] == [None] * 5


def test_what_met_nobody_comes_again_until_it_has_happened() -> None:
    schedule = Schedule(random.Random(1))
    for _ in range(3):
        events = [schedule.next(()) for _ in range(len(KINDS) + 1)]
        assert {event[0].name for event in events if event} == {kind.name for kind in KINDS}
        assert not schedule.is_complete
        for kind, _target in filter(None, events):
            schedule.told(kind, happened=False)
    while not schedule.is_complete:
        event = schedule.next(())
        assert event is not None
        schedule.told(event[0], happened=True)


def test_what_must_wait_lets_another_that_is_due_go_first() -> None:
    schedule = Schedule(random.Random(1))
    found = [schedule.next({"broker"}) for _ in range(len(KINDS) + 1)]
    names = {event[0].name for event in found if event}
    assert names == {kind.name for kind in KINDS if "broker" not in (*kind.targets, *kind.besides)}


def test_the_broker_often_goes_while_partitions_are_taken_over() -> None:
    schedule = Schedule(random.Random(1))
    events = [event for _ in range(500) if (event := schedule.next(())) is not None]
    both = [(kind, target) for kind, target in events if kind.name in ("kill_before_broker", "freeze_before_broker")]
    assert len(both) > 0.1 * len(events)
    assert {target for _, target in both} == set(TAKEN_OVER)


@pytest.mark.parametrize("happened", [True, False])
async def test_only_what_happened_counts_and_the_last_that_was_missing_releases_the_sampler(
    tmp_path: Path, happened: bool
) -> None:
    log = Log()
    arena = Arena(make_plan(tmp_path), tmp_path, {}, log)
    schedule = Schedule(arena.chance)
    arena.markers.hold()

    async def event(arena: Arena, target: str) -> bool:
        return happened

    kind = Kind(name="kill", fire=event, targets=("learner",))
    schedule._missing = {kind}
    await fire_one(arena, schedule, kind, "learner")
    assert (log.events[kind.name], log.in_vain[kind.name]) == (int(happened), int(not happened))
    assert arena.markers.is_held is not happened


def test_the_sampler_keeps_the_last_groups_back_but_not_for_ever(tmp_path: Path) -> None:
    plan, markers = make_plan(tmp_path), Markers(tmp_path)
    asking = Asking(plan, Scene("sampler", plan.expected, markers, Trace(tmp_path, "sampler")))
    asking.observe(make_version(0))
    markers.hold()

    def ask(now: float) -> int:
        before, asking._clock = cursor(), lambda: now
        for _ in range(2 * NUM_GROUPS):
            asking.next_unit()
        return cursor() - before

    def cursor() -> int:
        return asking._sampler._admission.cursor.next_training

    assert ask(1000.0) == NUM_GROUPS - NUM_HELD
    assert ask(1000.1) == 0
    assert ask(1000.1 + HELD_EVERY_S) == 1
    assert ask(1000.2 + 2 * HELD_EVERY_S) == 1
    markers.release()
    assert ask(1000.3 + 2 * HELD_EVERY_S) == NUM_HELD - 2


def test_events_that_never_came_are_told_and_so_is_that_nothing_was_kept(tmp_path: Path) -> None:
    calm, log = make_course(Log(), tmp_path), full_log()
    assert Report(calm=calm, fire=make_course(log, tmp_path), duration_s=1.0, driver_peak_bytes=0).faults == {}
    log.num_kept = 0
    del log.events["hang"]
    faults: Any = Report(calm=calm, fire=make_course(log, tmp_path), duration_s=1.0, driver_peak_bytes=0).faults
    assert faults == {
        "events that never came": ["hang"],
        "kept handlers": ["expected some in work while their stage was scaled, got none"],
    }


def test_the_death_of_a_learner_is_an_event_of_its_own(tmp_path: Path) -> None:
    course = make_course(full_log(), tmp_path)
    assert never_came(course) == []
    del course.log.hits["kill learner"]
    course.log.told("kill", "verifier", happened=True)
    assert never_came(course) == ["kill learner"]


def test_three_brokers_have_events_of_their_own(tmp_path: Path) -> None:
    course = make_course(full_log(), tmp_path)
    on_three = msgspec.structs.replace(course, plan=msgspec.structs.replace(course.plan, num_brokers=3))
    assert never_came(on_three) == ["move_leaders", "lose_quorum"]
    schedule = Schedule(random.Random(1), kinds_of(3))
    fired = {event[0] for _ in range(len(kinds_of(3)) + 1) if (event := schedule.next(())) is not None}
    assert {kind.name for kind in fired} == {kind.name for kind in (*KINDS, *CLUSTER_KINDS)}
