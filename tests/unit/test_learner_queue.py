"""What waits for the learner, what is finished of its input, and the records that it makes of both."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.learner.facts import PastOutcomes, batch_metrics, dropped, finite, identify, trained
from consumers.learner.plan import oldest_version, trainable
from consumers.learner.queue import Dropped, FinishedOffsets, GroupQueue, Waiting
from gagar.errors import ConfigError
from gagar.records import AttemptFacts, GroupAdvantages, LineageEntry, LogRef, MemberAdvantage, Outcome, PolicyVersion
from gagar.stream.handlers import Delivery
from gagar.training.checkpoint import CheckpointState
from tests.builders import make_outcome, make_version
from tests.learner import make_advantages


def make_group(
    name: str, versions: Sequence[int] = (0,), advantages: Sequence[float] = (1.0, -1.0), **fields: Any
) -> GroupAdvantages:
    members = [
        MemberAdvantage(
            sample_index=index,
            trajectory=LogRef(topic="trajectories", partition=0, offset=index),
            attempt=AttemptFacts(
                tokens=LogRef(topic="trajectory-tokens", partition=0, offset=index),
                num_prompt_tokens=4,
                num_sampled_tokens=5,
                policy_version_min=versions[index % len(versions)],
                policy_version_max=versions[index % len(versions)] + 1,
                status="completed",
                request=LogRef(topic="rollout-requests", partition=0, offset=0),
            ),
            reward=float(advantage > 0),
            grpo_advantage=advantage,
            weight=1.0,
            advantage=advantage,
        )
        for index, advantage in enumerate(advantages)
    ]
    return make_advantages(name, members, **fields)


def make_delivery(group: GroupAdvantages, offset: int, partition: int = 0, at: float = 0.0) -> Delivery[Any]:
    return Delivery(ref=LogRef(topic="advantages", partition=partition, offset=offset), key=group.group_id, record=group, at=at)


def names(queue: GroupQueue, version: int = 0, max_staleness: int = 9) -> list[str]:
    """All that `take` gives, in order."""
    found = []
    while (taken := queue.take(version, max_staleness)) is not None:
        assert isinstance(taken, Waiting)
        found.append(taken.group.group_id)
    return found


def make_queue(**replay: int) -> GroupQueue:
    return GroupQueue(FinishedOffsets({}, {}), replay)


def test_the_oldest_policy_comes_first_then_broker_time_then_the_place_in_the_log() -> None:
    queue = make_queue()
    queue.add([make_delivery(make_group("young", [3]), 0, at=1.0), make_delivery(make_group("late"), 1, at=9.0)])
    queue.add([make_delivery(make_group("p1"), 0, partition=1, at=5.0), make_delivery(make_group("p0"), 2, at=5.0)])
    assert names(queue) == ["p0", "p1", "late", "young"]


@given(st.permutations(range(6)))
def test_the_order_of_arrival_does_not_matter(order: list[int]) -> None:
    queue = make_queue()
    for number in order:
        queue.add([make_delivery(make_group(f"g{number}", [number % 2]), 0, partition=number, at=float(number // 2))])
    assert names(queue) == ["g0", "g2", "g4", "g1", "g3", "g5"]


def test_groups_of_an_abandoned_future_come_again_by_their_step() -> None:
    queue = make_queue(b=12, a=11, gone=12)
    queue.add(
        [make_delivery(make_group("new"), 0), make_delivery(make_group("b", [3]), 1), make_delivery(make_group("a", [4]), 2)]
    )
    assert queue.num_missing == 1
    assert names(queue) == ["a", "b", "new"]


def test_a_group_that_the_log_holds_twice_is_taken_once(caplog: pytest.LogCaptureFixture) -> None:
    """In one poll, in a later one, after it has been trained, and where its outcome is from before this start."""
    queue = GroupQueue(FinishedOffsets({}, {}), ended=["before"])
    queue.add([make_delivery(make_group("a"), 0), make_delivery(make_group("a"), 1), make_delivery(make_group("before"), 2)])
    first = queue.take(0, 9)
    assert isinstance(first, Waiting)
    queue.add([make_delivery(make_group("a"), 3)])
    queue.progress.finish(first.ref)
    queue.add([make_delivery(make_group("a"), 4), make_delivery(make_group("b"), 5)])
    assert [waiting.group.group_id for waiting in queue.take_all()] == ["b"]
    assert queue.progress.positions() == {0: 5}
    assert [record.message for record in caplog.records] == [
        f"group met twice, second record passed over group={name} record=advantages[0]@{offset}"
        for name, offset in (("a", 1), ("before", 2), ("a", 3), ("a", 4))
    ]


def past(outcomes: Sequence[Outcome], step: int, lineage: Sequence[LineageEntry] = ()) -> PastOutcomes:
    found = PastOutcomes(step, lineage)
    for outcome in outcomes:
        found.observe(outcome)
    return found


def test_groups_have_ended_whose_outcome_is_the_work_of_a_step_that_counts() -> None:
    outcomes = [
        make_outcome("trained", run_id="one", step=3),
        make_outcome("abandoned", run_id="one", step=4),
        make_outcome("dropped", kind="dropped", reason="stale", run_id="two", step=5),
        make_outcome("elsewhere", run_id="other", step=1),
        make_outcome("ungraded", kind="dropped", reason="all_failed"),
    ]
    lineage = [LineageEntry(run_id="one", last_step=3), LineageEntry(run_id="two", last_step=5)]
    assert past(outcomes, 9, lineage).ended == {"trained", "dropped"}


def test_a_group_too_stale_for_the_step_it_would_meet_is_dropped_when_taken() -> None:
    queue = make_queue()
    queue.add([make_delivery(make_group("old", [1]), 0), make_delivery(make_group("new", [2]), 1)])
    first = queue.take(4, 2)
    assert isinstance(first, Dropped)
    assert (first.waiting.group.group_id, first.reason) == ("old", "stale")
    assert names(queue, 4, 2) == ["new"]


def test_hopeless_groups_are_found_behind_others() -> None:
    queue = make_queue(fresh=1)
    queue.add([make_delivery(make_group("fresh", [5]), 0), make_delivery(make_group("stale", [1]), 1)])
    queue.add([make_delivery(make_group("flat", [5], [0.0, 0.0]), 2)])
    dropped_now = queue.drop_hopeless(5, 2)
    assert {(drop.waiting.group.group_id, drop.reason) for drop in dropped_now} == {("stale", "stale"), ("flat", "untrainable")}
    assert names(queue, 5, 2) == ["fresh"]


def test_the_oldest_token_decides_and_members_without_tokens_do_not_count() -> None:
    assert oldest_version(make_group("g", [4, 2])) == 2
    assert not trainable(make_group("g", advantages=[0.0]))
    assert trainable(make_group("g", advantages=[0.0, -0.5]))
    assert not trainable(make_group("g", advantages=[]))


def test_the_low_watermark_stays_at_the_first_unfinished_offset() -> None:
    progress = FinishedOffsets({}, {})
    refs = [LogRef(topic="advantages", partition=3, offset=offset) for offset in (5, 6, 9)]
    for ref in refs:
        progress.read(ref)
    assert progress.positions() == {3: 5}
    progress.finish(refs[1])
    assert (progress.positions(), progress.finished()) == ({3: 5}, {3: [6, 7, 8]})
    progress.finish(refs[0])
    assert (progress.positions(), progress.finished()) == ({3: 9}, {})
    progress.finish(refs[2])
    assert progress.positions() == {3: 10}


@given(st.lists(st.integers(0, 1), max_size=30), st.data())
def test_a_restart_reads_every_unfinished_offset_and_no_finished_one(partitions: list[int], data: st.DataObject) -> None:
    progress = FinishedOffsets({}, {})
    refs = [LogRef(topic="advantages", partition=partition, offset=offset) for offset, partition in enumerate(partitions)]
    for ref in refs:
        progress.read(ref)
    done = data.draw(st.sets(st.sampled_from(refs))) if refs else set()
    for ref in sorted(done):
        progress.finish(ref)
    later = FinishedOffsets(progress.positions(), progress.finished())
    again = [ref for ref in refs if ref.offset >= progress.positions()[ref.partition] and later.read(ref)]
    assert set(again) == set(refs) - done
    assert later.positions() == progress.positions()


def test_outcomes_carry_run_step_staleness_and_the_counts_of_the_group() -> None:
    group = make_group("g1", [2, 4], num_requested=8, num_valid=7, num_passed=3, num_clean=1, num_sampled_tokens=99)
    outcome = trained(group, "r1", 6, 50.0)
    assert (outcome.kind, outcome.reason, outcome.run_id, outcome.step, outcome.staleness) == ("trained", "", "r1", 6, 3)
    assert (outcome.num_requested, outcome.num_valid, outcome.num_passed, outcome.num_clean) == (8, 7, 3, 1)
    assert (outcome.policy_version_min, outcome.policy_version_max, outcome.num_sampled_tokens) == (2, 5, 99)
    lost = dropped(group, "lost", "r1", 6, 50.0)
    assert (lost.kind, lost.reason, lost.step, lost.staleness) == ("dropped", "lost", 6, -1)


def test_tokens_of_an_abandoned_future_are_not_younger_than_fresh() -> None:
    assert trained(make_group("g", [9]), "r", 3, 0.0).staleness == 0


def test_only_the_last_outcome_of_a_group_after_the_checkpoint_is_replayed() -> None:
    outcomes = [
        make_outcome("a", run_id="x", step=11),
        make_outcome("a", run_id="y", step=12),
        make_outcome("b", run_id="x", step=10),
        make_outcome("c", kind="dropped", reason="stale", run_id="x", step=12),
    ]
    assert past(outcomes, 10).replay == {"a": 12}


def entries(**last_steps: int) -> list[LineageEntry]:
    return [LineageEntry(run_id=run_id, last_step=step) for run_id, step in last_steps.items()]


def test_the_first_run_continues_none() -> None:
    assert identify("a", CheckpointState(run_id="", step=0), []).lineage == []


def test_a_run_that_continues_names_the_steps_that_survive() -> None:
    base = CheckpointState(run_id="b", step=9, lineage=entries(a=4))
    versions = [make_version(0, "a"), make_version(12, "b", lineage=entries(a=4))]
    assert identify("c", base, versions).lineage == entries(a=4, b=9)
    assert identify("d", base, [*versions, make_version(9, "c", lineage=entries(a=4, b=9))]).lineage == entries(a=4, b=9)


@pytest.mark.parametrize(
    ("newest", "lineage"),
    [
        (make_version(7, "a"), entries(a=0)),
        (make_version(0, "a"), entries(a=0)),
        (make_version(7, "c", lineage=entries(a=2, b=4)), entries(a=0)),
        (make_version(7, "c", lineage=entries(a=0, b=4)), entries(a=0, b=0)),
        (make_version(0, "b", lineage=entries(a=0)), entries(a=0, b=0)),
    ],
)
def test_without_a_checkpoint_only_first_policies_are_left_of_a_lineage(
    newest: PolicyVersion, lineage: list[LineageEntry]
) -> None:
    assert identify("d", CheckpointState(run_id="", step=0), [newest]).lineage == lineage


@pytest.mark.parametrize(("run_id", "step"), [("a", 4), ("x", 1)])
def test_a_checkpoint_of_an_abandoned_future_is_refused(run_id: str, step: int) -> None:
    base = CheckpointState(run_id=run_id, step=step)
    versions = [make_version(5, "a"), make_version(2, "b", lineage=entries(a=2))]
    with pytest.raises(ConfigError, match=rf"checkpoint of run {run_id} step {step}: expected one that run b descends from"):
        identify("c", base, versions)


def test_batch_metrics_are_over_all_members() -> None:
    groups = [make_group("a", [1], [1.0, -1.0]), make_group("b", [3], [0.5, 0.0, -0.5], fallback="timeout")]
    metrics = batch_metrics(groups, 4)
    assert (metrics["staleness_mean"], metrics["staleness_max"], metrics["num_trajectories"]) == (1.0, 2.0, 5.0)
    assert metrics["reward_mean"] == pytest.approx(0.4)
    assert metrics["advantage_mean"] == pytest.approx(0.0)
    assert metrics["zero_advantage_fraction"] == pytest.approx(0.2)
    assert metrics["ungraded_fraction"] == 0.5


def test_a_record_carries_no_number_that_is_none() -> None:
    assert finite({"a": 1.0, "b": float("nan"), "c": float("inf")}) == {"a": 1.0}
