"""A learner that is killed and goes back, again and again: one lineage survives, with the same batches, and all agree on it."""

import asyncio
import logging
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagar.audit.fold import Audit
from gagar.audit.result import AuditResult
from gagar.config import TrainingTable
from gagar.groups.admission import Admission, AdmissionLimits, Cursor
from gagar.groups.lineage import Lineage
from gagar.records import GroupAdvantages, Outcome, RolloutRequest, encode
from gagar.stream.journal import Journal, LogJournal
from gagar.stream.limits import RuntimeLimits
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.readers.scans import scan_transport
from gagar.stream.transport import Send
from gagar.training.checkpoint import CheckpointState, read_latest
from producers.sampler import Sampler
from tests.builders import make_delivery
from tests.learner import NUM_PARTITIONS, FakeJournal, FakeLog, make_settings
from tests.lives import Back, Death, GroupEnd, Lives, Pipeline, Plan
from topology import topics
from topology.stages import LEARNER

pytestmark = pytest.mark.slow

NUM_STEPS = 6
GROUPS_PER_STEP = 2
TRAINING = {
    "groups_per_step": GROUPS_PER_STEP,
    "num_steps": NUM_STEPS,
    "max_staleness": 2,
    "group_size": 2,
    "evaluate_every": 2,
    "evaluation_group_size": 2,
}
ALL_ENDS: tuple[GroupEnd, ...] = ("trained", "trained", "trained", "all_failed", "stale", "untrainable", "lost", "non_finite")
Step = tuple[int, Death, Back]
deaths = st.tuples(
    st.integers(1, 12),
    st.sampled_from(["before", "after", "checkpoint", "term"]),
    st.sampled_from(["newest", "newest", "newest", "older", "none"]),
)
plans = st.builds(
    Plan,
    seed=st.integers(0, 1 << 20),
    ends=st.lists(st.sampled_from(ALL_ENDS), max_size=5).map(lambda ends: ("trained", "trained", *ends)),
    max_lag=st.integers(0, 2),
    is_shuffled=st.booleans(),
)
in_order = st.builds(
    Plan,
    seed=st.integers(0, 1 << 20),
    ends=st.lists(st.sampled_from([end for end in ALL_ENDS if end != "stale"]), max_size=5).map(
        lambda ends: ("trained", "trained", *ends)
    ),
)
"""No group that comes later is older, and so goes before the others."""


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Thousands of warnings of drops, of which a failing example needs none."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def partition_of(group_id: str) -> int:
    """As the transports have it."""
    return zlib.crc32(group_id.encode()) % NUM_PARTITIONS


def make_sampler(training: TrainingTable) -> Sampler:
    return Sampler(training, 0, ["a", "b", "c"], ["x", "y"])


@contextmanager
def make_lives(plan: Plan, memory: MemoryLog | None = None, **training: int) -> Iterator[Lives]:
    """Over a log of lists, or through the real journal over one in memory."""
    log, root = FakeLog(), tempfile.TemporaryDirectory()
    learner = make_settings(Path(root.name), {**TRAINING, **training}, checkpoint_every=2, max_non_finite=100)
    sampler = make_sampler(learner.run.training)
    sampler.restore(b"")

    def write(group: GroupAdvantages) -> None:
        log.advantages[partition_of(group.group_id)].append(group)
        if memory:
            memory.append(Send(topic=topics.ADVANTAGES.name, key=group.group_id.encode(), value=encode(group)))

    def open_journal() -> Journal:
        if memory is None:
            return FakeJournal(log)
        return LogJournal(LEARNER, MemoryTransport(memory), topics.DEAD_LETTERS, RuntimeLimits(commit_gap_s=0.0))

    lives = Lives(learner, Pipeline(sampler, plan, write), open_journal)
    try:
        yield lives
    finally:
        lives.close()
        root.cleanup()


def live_through(lives: Lives, history: list[Step]) -> None:
    """The deaths, each with the laws that hold after it; then one more life, to the planned end."""
    for death in history:
        lives.live(*death)
        check(lives)
    lives.live(1 << 30, "term")
    check(lives)


def check(lives: Lives) -> None:
    """What holds at any moment: of the audit, of a sampler that starts now, of the checkpoint."""
    found = read_latest(lives.places.checkpoints)
    if found is not None:
        check_checkpoint(lives, found[1])
    if lives.pipeline.versions:
        surviving = lives.surviving(lives.survivors())
        check_lineage(lives, surviving)
        check_audit(audited(lives), lives, surviving)
        check_sampler(lives, surviving)


def check_checkpoint(lives: Lives, state: CheckpointState) -> None:
    """Nothing that is finished holds the position back, and nothing that is not is passed."""
    ended = {outcome.group_id for outcome in lives.surviving(lives.survivors(state.run_id, state.step))}
    for partition in range(NUM_PARTITIONS):
        groups = [g.group_id for g in lives.pipeline.advantages if partition_of(g.group_id) == partition]
        finished = [offset for offset, group_id in enumerate(groups) if group_id in ended]
        low = next((offset for offset, name in enumerate(groups) if name not in ended), len(groups))
        assert state.positions.get(partition, 0) == low
        assert state.finished.get(partition, []) == [offset for offset in finished if offset > low]


def check_lineage(lives: Lives, surviving: list[Outcome]) -> None:
    lineage = Lineage()
    for version in lives.pipeline.versions:
        lineage.observe(version)
    counted = [o for o in lives.pipeline.outcomes if not o.run_id or lineage.survives(o.run_id, o.step)]
    assert counted == surviving


def audited(lives: Lives) -> AuditResult:
    """Everything but the requests first, as `gagar audit` reads it."""
    audit = Audit()
    records: list[Any] = [*lives.pipeline.records, *lives.pipeline.advantages]
    for record in sorted(records, key=lambda record: isinstance(record, RolloutRequest)):
        audit.apply(make_delivery(record, offset=getattr(record, "sample_index", 0)))
    return audit.result(is_in_flight_allowed=True)


def check_audit(report: AuditResult, lives: Lives, surviving: list[Outcome]) -> None:
    in_flight = set(lives.pipeline.requested) - {outcome.group_id for outcome in surviving}
    assert report.findings == []
    assert max(Counter(outcome.group_id for outcome in surviving).values(), default=0) <= 1
    assert report.num_requested == len(lives.pipeline.requested)
    assert report.num_in_flight == len(in_flight)
    assert report.num_trained == sum(outcome.kind == "trained" for outcome in surviving)
    assert report.num_evaluated == sum(outcome.kind == "evaluated" for outcome in surviving)
    assert report.dropped == Counter(outcome.reason for outcome in surviving if outcome.reason)
    assert report.num_superseded == len(lives.pipeline.outcomes) - len(surviving)


def check_sampler(lives: Lives, surviving: list[Outcome]) -> None:
    """One that starts now, from the tables compacted or not, has exactly the groups in flight that have no end that counts."""
    requested = lives.pipeline.requested
    rounds = sorted({int(name[2:8]) for name in requested if name.startswith("e")})
    cursor = Cursor(
        next_training=sum(name.startswith("t") for name in requested),
        round_step=rounds[-1] if rounds else -1,
        next_evaluation=sum(name.startswith(f"e-{rounds[-1]:06d}") for name in requested) if rounds else 0,
        num_evaluations=sum(name.startswith("e") for name in requested),
    )
    ended = {outcome.group_id for outcome in surviving}
    outcomes, versions = lives.pipeline.outcomes, lives.pipeline.versions
    newest = {outcome.group_id: outcome for outcome in outcomes}
    for kept, seen in ((outcomes, versions), (list(newest.values()), versions[-1:])):
        admission = Admission(AdmissionLimits(max_unresolved=6, evaluate_every=2, num_heldout=2, num_steps=NUM_STEPS), cursor)
        for outcome in kept:
            admission.observe_outcome(outcome)
        for version in seen:
            admission.observe_version(version)
        assert admission.num_unresolved == sum(name.startswith("t") and name not in ended for name in requested)
        assert admission.num_unresolved_evaluations == sum(name.startswith("e") and name not in ended for name in requested)


@settings(max_examples=25)
@given(plan=plans, history=st.lists(deaths, max_size=6))
def test_whatever_the_deaths_one_lineage_survives_and_all_who_read_it_agree(plan: Plan, history: list[Step]) -> None:
    with make_lives(plan) as lives:
        live_through(lives, history)
        report = audited(lives)
        assert (report.findings, report.num_in_flight, report.is_ended) == ([], 0, True)
        assert report.num_trained == NUM_STEPS * GROUPS_PER_STEP
        for step, batches in lives.batches().items():
            assert len(set(batches)) == 1, f"step {step} was made of {batches}"


@settings(max_examples=12)
@given(plan=in_order, history=st.lists(deaths, min_size=1, max_size=5))
def test_over_the_same_log_the_batches_are_those_of_a_learner_that_never_died(plan: Plan, history: list[Step]) -> None:
    """The sampler asks for more groups than are needed before the first step, and they arrive at once."""
    with make_lives(plan, max_staleness=40) as undisturbed, make_lives(plan, max_staleness=40) as lives:
        live_through(undisturbed, [])
        live_through(lives, history)
        assert {step: set(batches) for step, batches in lives.batches().items()} == {
            step: set(batches) for step, batches in undisturbed.batches().items()
        }
        assert all(ours == theirs for ours, theirs in zip(asked(lives), asked(undisturbed), strict=False))


@settings(max_examples=12)
@given(plan=plans, moves=st.lists(st.integers(-4, 4), min_size=1, max_size=3), history=st.lists(deaths, max_size=2))
def test_a_finished_run_whose_end_moves_trains_on_to_where_it_is_now(plan: Plan, moves: list[int], history: list[Step]) -> None:
    """Also to an end that lies before what has been made: then nothing more happens."""
    with make_lives(plan) as lives:
        live_through(lives, [])
        end = furthest = NUM_STEPS
        for move in moves:
            end = max(1, end + move)
            furthest = max(furthest, end)
            lives.move_end(end, make_sampler)
            live_through(lives, history if end == furthest else [])
            report = audited(lives)
            assert (report.findings, report.num_in_flight, report.is_ended) == ([], 0, True)
            assert report.num_trained == furthest * GROUPS_PER_STEP


def asked(lives: Lives) -> list[tuple[str, str, int, int]]:
    """Every training request in order."""
    requests = [record for record in lives.pipeline.records if isinstance(record, RolloutRequest)]
    return [(r.group_id, r.task_id, r.sample_index, r.seed) for r in requests if r.purpose == "training"]


PLAN = Plan(seed=5, ends=ALL_ENDS, max_lag=1, is_shuffled=True)
HISTORIES: dict[str, list[Step]] = {
    "to the same checkpoint twice": [(7, "after", "newest"), (2, "before", "newest"), (2, "after", "newest")],
    "to one after the other": [(9, "checkpoint", "newest"), (9, "before", "newest"), (9, "after", "newest")],
    "to an older one": [(16, "after", "newest"), (3, "after", "older"), (5, "term", "newest")],
    "without any": [(3, "after", "none"), (3, "before", "none"), (12, "after", "none")],
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_learner_that_falls_back_leaves_one_lineage_on_the_topics(name: str) -> None:
    """Through the real journal; what the topics hold is what its learners committed."""
    log = MemoryLog(topics.TOPICS, NUM_PARTITIONS)
    with make_lives(PLAN, log) as lives:
        live_through(lives, HISTORIES[name])
        for batches in lives.batches().values():
            assert len(set(batches)) == 1
        assert max(map(len, lives.batches().values())) > 1, "no step was made again"
        found = asyncio.run(read(log))
        written = [record for record in lives.pipeline.records if getattr(record, "run_id", "")]
        assert sorted(found, key=repr) == sorted(written, key=repr)


async def read(log: MemoryLog) -> list[Any]:
    """Outcomes and versions as any reader sees them."""
    transport = MemoryTransport(log)
    return [delivery.record async for delivery in scan_transport(transport, [topics.OUTCOMES, topics.POLICY_VERSIONS])]
