"""The fold of a run: counts agree with what was fed in, abandoned steps leave no trace, and order between topics is free."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.groups.rounds import Round
from gagar.records import DeadLetter, LineageEntry, Outcome, PolicyVersion, Record
from gagar.report.progress import AttemptSums, Progress, Snapshot, moving, recent
from gagar.stream.handlers import Delivery
from tests.builders import CLEAN, DEAD_CODE, OUTSIDE, make_delivery, make_ref, make_request, make_verdict


def trained(group_id: str, step: int, run_id: str = "r1", staleness: int = 0) -> Outcome:
    return Outcome(
        group_id=group_id, task_id="t", purpose="training", kind="trained", run_id=run_id, step=step, staleness=staleness
    )


def dropped(group_id: str, reason: Any, run_id: str = "", step: int = -1) -> Outcome:
    return Outcome(group_id=group_id, task_id="t", purpose="training", kind="dropped", reason=reason, run_id=run_id, step=step)


def evaluated(group_id: str, step: int, num_valid: int = 4, num_passed: int = 2, num_clean: int = 1) -> Outcome:
    return Outcome(
        group_id=group_id,
        task_id="t",
        purpose="evaluation",
        kind="evaluated",
        step=step,
        num_requested=4,
        num_valid=num_valid,
        num_passed=num_passed,
        num_clean=num_clean,
        num_sampled_tokens=10 * num_valid,
    )


def version(number: int, run_id: str = "r1", lineage: tuple[tuple[str, int], ...] = (), **fields: Any) -> PolicyVersion:
    entries = [LineageEntry(run_id=name, last_step=last) for name, last in lineage]
    return PolicyVersion(
        run_id=run_id, version=number, step=number, lineage=entries, location="/p", checksum="", **{"metrics": {}, **fields}
    )


TOPICS = {
    "RolloutRequest": "rollout-requests",
    "Verdict": "verdicts",
    "Outcome": "outcomes",
    "PolicyVersion": "policy-versions",
    "DeadLetter": "dead-letters",
}


def deliveries(*records: Record) -> list[Delivery[Any]]:
    return [make_delivery(record, TOPICS[type(record).__name__], at=100.0 + i) for i, record in enumerate(records)]


def fold(*records: Record) -> Snapshot:
    progress = Progress()
    for delivery in deliveries(*records):
        progress.apply(delivery)
    return progress.snapshot()


def test_nothing_yet_is_a_snapshot_too() -> None:
    snapshot = fold()
    assert (snapshot.num_requested, snapshot.num_in_flight, snapshot.version, snapshot.step) == (0, 0, -1, 0)
    assert snapshot.metrics == {}


def test_groups_are_counted_once_whatever_their_size() -> None:
    snapshot = fold(*(make_request(f"t-{g}", i) for g in range(3) for i in range(4)))
    assert snapshot.num_requested == 3
    assert snapshot.num_in_flight == 3
    assert snapshot.records == {"rollout-requests": 12}


def test_every_ending_takes_a_group_out_of_flight() -> None:
    requests = [make_request(f"t-{g}") for g in range(4)] + [make_request("e-0")]
    endings = [trained("t-0", 1), dropped("t-1", "all_failed"), dropped("t-2", "stale", "r1", 1), evaluated("e-0", 0)]
    snapshot = fold(*requests, version(0), *endings)
    assert (snapshot.num_trained, snapshot.num_evaluated, snapshot.num_dropped, snapshot.num_in_flight) == (1, 1, 2, 1)
    assert snapshot.dropped == {"all_failed": 1, "stale": 1}


def test_training_attempts_are_summed_by_the_version_that_sampled_them() -> None:
    snapshot = fold(
        make_verdict("t-0", 0, measures=CLEAN, policy_version_max=3, num_sampled_tokens=30),
        make_verdict("t-0", 1, measures=DEAD_CODE, policy_version_max=3, num_sampled_tokens=50),
        make_verdict("t-0", 2, measures=OUTSIDE, policy_version_max=3, num_sampled_tokens=40),
        make_verdict("t-0", 3, "failed", measures=DEAD_CODE, policy_version_max=3, num_sampled_tokens=40),
        make_verdict("t-1", 0, "failed", policy_version_max=2),
    )
    assert [a.version for a in snapshot.attempts] == [2, 3]
    newest = snapshot.attempts[1]
    assert (newest.num_valid, newest.num_passed, newest.num_clean) == (4, 3, 1)
    assert (newest.num_with_dead_code, newest.num_out_of_scope) == (1, 1)
    assert newest.num_sampled_tokens == 160


def test_invalid_attempts_are_in_no_statistics() -> None:
    (sums,) = fold(make_verdict(status="invalid", num_sampled_tokens=99), make_verdict(sample_index=1)).attempts
    assert (sums.num_valid, sums.num_passed, sums.num_sampled_tokens) == (1, 1, 40)


def test_evaluation_attempts_do_not_mix_with_training_ones() -> None:
    snapshot = fold(make_verdict("e-0"), evaluated("e-0", 0))
    assert snapshot.attempts == []
    assert [r.step for r in snapshot.rounds] == [0]


def test_rounds_are_kept_apart_by_step() -> None:
    snapshot = fold(evaluated("e-0", 0, num_passed=1), evaluated("e-1", 0, num_passed=0), evaluated("e-2", 50, num_passed=4))
    assert [(r.step, r.num_groups, r.pass_rate) for r in snapshot.rounds] == [(0, 2, 0.125), (50, 1, 1.0)]


def test_a_round_without_a_valid_attempt_has_no_rate() -> None:
    (only,) = fold(evaluated("e-0", 0, num_valid=0, num_passed=0, num_clean=0)).rounds
    assert (only.pass_rate, only.pass_error, only.quality, only.quality_error) == (None, 0.0, None, 0.0)


def test_steps_know_their_staleness_and_their_metrics() -> None:
    snapshot = fold(
        version(0), trained("t-0", 1, staleness=0), trained("t-1", 1, staleness=3), version(1, metrics={"loss": 0.5})
    )
    (first,) = [s for s in snapshot.steps if s.num_groups]
    assert (first.step, first.staleness, first.staleness_max) == (1, 1.5, 3)
    assert snapshot.metrics == {"loss": 0.5}


def test_a_version_ahead_of_its_outcomes_does_not_hide_the_step_before() -> None:
    snapshot = fold(version(0), trained("t-0", 1, staleness=2), version(1), version(2, metrics={"loss": 0.5}))
    assert snapshot.newest_trained is not None
    assert (snapshot.newest_trained.step, snapshot.newest_trained.staleness) == (1, 2.0)
    assert fold(version(0)).newest_trained is None


def test_dead_letters_are_counted() -> None:
    letter = DeadLetter(stage="verifier", source=make_ref("trajectories", 1), error="bad", key=b"", value=b"")
    assert fold(letter, letter).num_dead_letters == 2


def test_times_are_those_of_the_oldest_and_the_newest_record() -> None:
    snapshot = fold(make_request(), make_verdict(), trained("t-0", 1))
    assert (snapshot.first_at, snapshot.last_at) == (100.0, 102.0)


def restarted() -> list[Record]:
    """Run r1 makes steps 1 to 3 and dies; r2 goes back to step 1 and makes 2 and 3 anew."""
    return [
        *(make_request(f"t-{g}") for g in range(5)),
        version(0),
        trained("t-1", 1),
        version(1, metrics={"loss": 1.0}),
        trained("t-2", 2),
        dropped("t-4", "stale", "r1", 2),
        version(2, metrics={"loss": 2.0}),
        trained("t-3", 3),
        version(3, metrics={"loss": 3.0}, is_last=True),
        version(1, "r2", (("r1", 1),)),
        trained("t-2", 2, "r2"),
        version(2, "r2", (("r1", 1),), metrics={"loss": 20.0}),
    ]


def test_steps_beyond_the_checkpoint_of_a_restarted_learner_are_superseded() -> None:
    snapshot = fold(*restarted())
    assert (snapshot.version, snapshot.is_last, snapshot.num_restarts) == (2, False, 1)
    assert (snapshot.num_trained, snapshot.dropped, snapshot.num_superseded) == (2, {}, 3)
    assert snapshot.num_in_flight == 3
    assert [(s.step, s.num_groups, s.metrics.get("loss")) for s in snapshot.steps] == [(0, 0, None), (1, 1, 1.0), (2, 1, 20.0)]


def test_a_late_record_of_the_replaced_run_changes_nothing() -> None:
    before = fold(*restarted())
    after = fold(*restarted(), trained("t-9", 4), version(4, metrics={"loss": 9.0}))
    assert (after.version, after.num_trained, after.steps) == (before.version, before.num_trained, before.steps)


def test_an_outcome_ahead_of_its_runs_first_version_waits_for_it() -> None:
    assert fold(make_request("t-0"), version(0), trained("t-0", 1, "r9")).num_in_flight == 1
    assert fold(make_request("t-0"), version(0), trained("t-0", 1, "r9"), version(1, "r9")).num_trained == 1


@given(st.randoms(use_true_random=False))
def test_the_order_between_topics_does_not_matter(shuffle: random.Random) -> None:
    by_topic: dict[str, list[Delivery[Any]]] = {}
    for delivery in deliveries(*restarted(), evaluated("e-0", 0), make_verdict()):
        by_topic.setdefault(delivery.ref.topic, []).append(delivery)
    progress = Progress()
    queues = [list(reversed(queue)) for queue in by_topic.values()]
    while queues:
        queue = shuffle.choice(queues)
        progress.apply(queue.pop())
        queues = [q for q in queues if q]
    expected = Progress()
    for queue in by_topic.values():
        for delivery in queue:
            expected.apply(delivery)
    assert progress.snapshot() == expected.snapshot()


def test_a_snapshot_stays_as_it_was_taken() -> None:
    progress = Progress()
    first, second = deliveries(trained("t-0", 1), version(1))
    progress.apply(first)
    progress.apply(second)
    before = progress.snapshot()
    for delivery in deliveries(
        trained("t-1", 1), dropped("t-2", "stale", "r1", 1), make_verdict(), evaluated("e-0", 0), dropped("t-3", "all_failed")
    ):
        progress.apply(delivery)
    assert (before.num_trained, before.steps[0].num_groups, before.steps[0].dropped) == (1, 1, {})
    assert (before.dropped, before.attempts, before.rounds) == ({}, [], [])
    assert progress.snapshot().num_trained == 2


rounds = st.lists(st.tuples(st.integers(1, 8), st.floats(0, 1)), min_size=2, max_size=30)


@given(rounds)
def test_the_standard_error_is_that_of_the_ratio_estimator(groups: list[tuple[int, float]]) -> None:
    evaluation = Round(step=0)
    counts = [(size, round(size * share)) for size, share in groups]
    for size, passed in counts:
        evaluation.add(evaluated("e", 0, num_valid=size, num_passed=passed, num_clean=0))
    rate = evaluation.pass_rate
    assert rate is not None
    residuals = [(passed - rate * size) ** 2 for size, passed in counts]
    expected = (sum(residuals) * len(counts) / (len(counts) - 1)) ** 0.5 / sum(size for size, _ in counts)
    assert evaluation.pass_error == pytest.approx(expected, abs=1e-6)


def make_sums(number: int, num_valid: int, num_passed: int = 0) -> AttemptSums:
    return AttemptSums(version=number, num_valid=num_valid, num_passed=num_passed)


def test_recent_takes_as_many_versions_as_hold_the_attempts() -> None:
    sums = [make_sums(0, 100, 1), make_sums(1, 60, 10), make_sums(2, 50, 20)]
    assert recent(sums, 100) == make_sums(2, 110, 30)
    assert recent(sums, 50) == make_sums(2, 50, 20)
    assert recent(sums, 10_000).num_valid == 210
    assert recent([], 10) == make_sums(-1, 0)


@given(st.lists(st.integers(0, 300), max_size=20), st.integers(1, 400))
def test_a_moving_window_holds_enough_attempts_or_all(sizes: list[int], num_attempts: int) -> None:
    sums = [make_sums(i, size, size) for i, size in enumerate(sizes)]
    for i, window in enumerate(moving(sums, num_attempts)):
        assert window.version == i
        assert window.num_valid >= min(num_attempts, sum(sizes[: i + 1]))
        assert window.num_passed == window.num_valid
