"""Admission: bounded, never starving, evaluations first, the same after a restart."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gagar.errors import BadRecordError, GagarError
from gagar.groups.admission import Admission, AdmissionLimits, Cursor, NextGroup, TaskOrder, stable_hash
from gagar.records import LineageEntry, Outcome, PolicyVersion
from tests.builders import make_outcome, make_version


def make_admission(**limits: int) -> Admission:
    wanted = {"max_unresolved": 4, "evaluate_every": 0, "num_heldout": 2, "num_steps": 1 << 30, **limits}
    return Admission(AdmissionLimits(**wanted), Cursor())


def drain(admission: Admission) -> list[str]:
    """Ids of all groups that are due."""
    ids = []
    while (group := admission.next_group()) is not None:
        ids.append(group.group_id)
        assert len(ids) < 100
    return ids


def started(**limits: int) -> Admission:
    """An admission whose first evaluation round and training groups are requested."""
    admission = make_admission(**limits)
    admission.observe_version(make_version(0))
    drain(admission)
    return admission


def test_nothing_is_requested_before_a_policy_is_published() -> None:
    assert make_admission().next_group() is None


def test_the_first_round_goes_before_any_training_group() -> None:
    admission = make_admission()
    admission.observe_version(make_version(0))
    assert drain(admission) == ["e-000000-0000", "e-000000-0001", "t-000000", "t-000001", "t-000002", "t-000003"]


@pytest.mark.parametrize(
    "outcome",
    [
        make_outcome("t-000002", "dropped", reason="all_failed"),
        make_outcome("t-000002", "dropped", reason="lost"),
        make_outcome("t-000002", "dropped", reason="dead_letter", num_requested=0, num_valid=0),
        make_outcome("t-000002", "dropped", reason="stale", run_id="a", step=1),
        make_outcome("t-000002", "trained"),
    ],
)
def test_every_outcome_frees_one_place(outcome: Outcome) -> None:
    admission = started()
    admission.observe_outcome(outcome)
    admission.observe_outcome(outcome)
    assert drain(admission) == ["t-000004"]


def test_an_evaluated_group_frees_no_place_of_training() -> None:
    admission = started()
    admission.observe_outcome(make_outcome("e-000000-0001", "evaluated"))
    assert drain(admission) == []
    assert admission.num_unresolved_evaluations == 1


def test_a_round_is_due_every_so_many_steps_and_named_by_the_newest() -> None:
    admission = started(evaluate_every=10)
    admission.observe_version(make_version(9))
    assert drain(admission) == []
    admission.observe_version(make_version(11))
    assert drain(admission) == ["e-000011-0000", "e-000011-0001"]
    admission.observe_version(make_version(19))
    assert drain(admission) == []
    admission.observe_version(make_version(20))
    assert drain(admission) == ["e-000020-0000", "e-000020-0001"]


def test_the_planned_end_brings_one_last_round_and_no_training_group() -> None:
    admission = started(num_steps=7)
    admission.observe_outcome(make_outcome("t-000000"))
    admission.observe_version(make_version(7, is_last=True))
    assert drain(admission) == ["e-000007-0000", "e-000007-0001"]


def test_a_round_of_the_last_step_is_not_made_twice() -> None:
    admission = started(evaluate_every=5, num_steps=5)
    admission.observe_version(make_version(5, is_last=True))
    assert drain(admission) == ["e-000005-0000", "e-000005-0001"]
    admission.observe_version(make_version(5, "b", is_last=True, lineage=[LineageEntry(run_id="a", last_step=5)]))
    assert drain(admission) == []


def test_it_is_done_when_the_last_round_and_every_group_have_ended() -> None:
    admission = started(num_steps=3)
    admission.observe_version(make_version(3, is_last=True))
    assert not admission.is_done
    drain(admission)
    for step in (0, 3):
        for index in range(2):
            assert not admission.is_done
            admission.observe_outcome(make_outcome(f"e-{step:06d}-{index:04d}", "evaluated", step=step))
    for index in range(4):
        assert not admission.is_done
        admission.observe_outcome(make_outcome(f"t-{index:06d}", "dropped", reason="ended", run_id="a", step=3))
    assert admission.is_done


def test_a_finished_run_goes_on_when_its_end_has_moved() -> None:
    """What is on the topics says "the last version"; the configuration says where the end is now."""
    outcomes = [
        *(make_outcome(f"e-{step:06d}-{index:04d}", "evaluated", step=step) for step in (0, 3) for index in range(2)),
        *(make_outcome(f"t-{index:06d}", "trained", run_id="a", step=index // 2 + 1) for index in range(6)),
        *(make_outcome(f"t-{index:06d}", "dropped", reason="ended", run_id="a", step=4) for index in (6, 7)),
    ]
    cursor = Cursor(next_training=8, round_step=3, next_evaluation=2, num_evaluations=4)

    def restarted(num_steps: int) -> Admission:
        limits = AdmissionLimits(max_unresolved=4, evaluate_every=2, num_heldout=2, num_steps=num_steps)
        admission = Admission(limits, cursor)
        admission.observe_version(make_version(3, is_last=True))
        for outcome in outcomes:
            admission.observe_outcome(outcome)
        return admission

    assert restarted(3).is_done
    assert restarted(2).is_done
    moved = restarted(40)
    assert not moved.is_done
    assert drain(moved) == ["t-000008", "t-000009", "t-000010", "t-000011"]
    moved.observe_version(make_version(3, "b", lineage=[LineageEntry(run_id="a", last_step=3)]))
    assert moved.num_unresolved == 6, "those that the finished learner had ended after its last step are trained now"
    moved.observe_version(make_version(4, "b", lineage=[LineageEntry(run_id="a", last_step=3)]))
    assert drain(moved) == ["e-000004-0000", "e-000004-0001"]


def test_a_superseded_group_is_in_flight_again_until_it_is_trained_anew() -> None:
    admission = started()
    admission.observe_version(make_version(1))
    admission.observe_outcome(make_outcome("t-000000", run_id="a", step=1))
    admission.observe_outcome(make_outcome("t-000001", run_id="a", step=2))
    assert admission.num_unresolved == 2
    admission.observe_version(make_version(1, "b", lineage=[LineageEntry(run_id="a", last_step=1)]))
    assert admission.num_unresolved == 3
    admission.observe_outcome(make_outcome("t-000001", run_id="b", step=2))
    assert admission.num_unresolved == 2


def test_the_newest_outcome_of_a_group_is_the_one_that_counts() -> None:
    admission = started()
    admission.observe_outcome(make_outcome("t-000001", run_id="a", step=2))
    admission.observe_version(make_version(1, "b", lineage=[LineageEntry(run_id="a", last_step=1)]))
    admission.observe_outcome(make_outcome("t-000001", "dropped", reason="stale", run_id="b", step=2))
    assert admission.num_unresolved == 3
    assert drain(admission) == ["t-000004"]


def test_an_outcome_from_beyond_the_cursor_is_an_error() -> None:
    with pytest.raises(GagarError, match=r"outcome of t-000004: expected a group before the sampler's cursor"):
        started().observe_outcome(make_outcome("t-000004"))
    with pytest.raises(GagarError, match="outcome of e-000000-0002: expected"):
        started().observe_outcome(make_outcome("e-000000-0002", "evaluated"))


def test_outcomes_of_groups_that_no_sampler_names_are_passed_over() -> None:
    admission = started()
    admission.observe_outcome(make_outcome("x-7", "dropped", reason="lost"))
    assert admission.num_unresolved == 4


def test_a_cursor_of_another_form_is_refused() -> None:
    with pytest.raises(BadRecordError, match="sampler cursor: expected its MessagePack form"):
        Cursor.from_bytes(b"\x01")


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_cursor_survives_its_bytes(a: int, b: int, c: int, d: int) -> None:
    cursor = Cursor(next_training=a, round_step=b, next_evaluation=c, num_evaluations=d)
    assert Cursor.from_bytes(cursor.to_bytes()) == cursor
    assert Cursor.from_bytes(b"") == Cursor()


@given(st.integers(0, 1 << 40), st.integers(1, 40), st.integers(0, 5))
def test_each_epoch_holds_every_task_once_in_an_order_that_is_a_function_of_seed_and_index(
    seed: int, num_tasks: int, epoch: int
) -> None:
    ids = [f"task-{i}" for i in range(num_tasks)]
    order, other = TaskOrder(ids, seed), TaskOrder(ids, seed)
    indices = range(epoch * num_tasks, (epoch + 1) * num_tasks)
    assert sorted(order[i] for i in indices) == sorted(ids)
    assert [other[i] for i in reversed(indices)] == [order[i] for i in reversed(indices)]


def test_epochs_and_seeds_differ() -> None:
    ids = [f"task-{i}" for i in range(20)]
    first = [TaskOrder(ids, 0)[i] for i in range(20)]
    assert [TaskOrder(ids, 0)[i] for i in range(20, 40)] != first
    assert [TaskOrder(ids, 1)[i] for i in range(20)] != first


def test_the_stable_hash_is_the_same_in_every_release() -> None:
    assert stable_hash("0/t-000000/0") == 2437507950323819731
    assert 0 <= stable_hash("x") < 1 << 63


class Sampling(RuleBasedStateMachine):
    """A sampler against a pipeline that ends groups in any order, a learner that goes back, and restarts at any time.

    What is written is read later, outcomes and versions each in their order and at their own pace. What the sampler must do
    follows from what it has read.
    """

    @initialize(
        max_unresolved=st.integers(1, 6), every=st.integers(0, 3), num_heldout=st.integers(1, 3), num_steps=st.integers(1, 12)
    )
    def begin(self, max_unresolved: int, every: int, num_heldout: int, num_steps: int) -> None:
        self.limits = AdmissionLimits(
            max_unresolved=max_unresolved, evaluate_every=every, num_heldout=num_heldout, num_steps=num_steps
        )
        self.admission = Admission(self.limits, Cursor())
        self.committed = b""
        self.requested: list[str] = []
        self.outcomes: list[Outcome] = []
        self.versions = [make_version(0, "run-0")]
        self.num_outcomes_read = self.num_versions_read = 0

    def in_flight(self, letter: str, outcomes: Sequence[Outcome], versions: Sequence[PolicyVersion]) -> list[str]:
        """By definition, from the records alone."""
        newest = versions[-1] if versions else make_version(-1, "none")
        last_steps = {entry.run_id: entry.last_step for entry in newest.lineage} | {"": 1 << 30, newest.run_id: 1 << 30}
        final = {outcome.group_id: outcome for outcome in outcomes}
        ended = {name for name, outcome in final.items() if outcome.step <= last_steps.get(outcome.run_id, -2)}
        return [name for name in self.requested if name.startswith(letter) and name not in ended]

    def unread(self, letter: str) -> list[str]:
        """In flight for who has read everything."""
        return self.in_flight(letter, self.outcomes, self.versions)

    def seen(self, letter: str) -> list[str]:
        """In flight for the sampler."""
        return self.in_flight(letter, self.outcomes[: self.num_outcomes_read], self.versions[: self.num_versions_read])

    @property
    def newest(self) -> PolicyVersion:
        return self.versions[-1]

    @property
    def newest_seen(self) -> PolicyVersion | None:
        return self.versions[self.num_versions_read - 1] if self.num_versions_read else None

    def is_over(self, version: PolicyVersion | None) -> bool:
        """The planned end of now has come with it."""
        return version is not None and version.step >= self.limits.num_steps

    def round_due(self) -> int | None:
        """Step of the evaluation round that must be asked for now, by what was asked for and read."""
        rounds = [int(name[2:8]) for name in self.requested if name.startswith("e")]
        if rounds and rounds.count(rounds[-1]) < self.limits.num_heldout:
            return rounds[-1]
        newest, every = self.newest_seen, self.limits.evaluate_every
        if newest is None or (rounds and newest.step <= rounds[-1]):
            return None
        is_crossed = every > 0 and any(step % every == 0 for step in range(rounds[-1] + 1, newest.step + 1)) if rounds else True
        return newest.step if is_crossed or self.is_over(newest) else None

    @rule(count=st.integers(1, 8))
    def request(self, count: int) -> None:
        """As many groups as are due, or some of them."""
        while count > 0 and self.requests_one():
            count -= 1

    def requests_one(self) -> bool:
        num_before, due = len(self.seen("t")), self.round_due()
        group = self.admission.next_group()
        if group is None:
            # Never starves: only a full pipeline or the planned end keeps it from asking.
            newest = self.newest_seen
            assert due is None
            assert newest is None or self.is_over(newest) or num_before >= self.limits.max_unresolved
            return False
        assert group.group_id not in self.requested
        if due is not None:
            place = sum(name.startswith(f"e-{due:06d}") for name in self.requested)
            assert (group.purpose, group.index, group.group_id) == ("evaluation", place, f"e-{due:06d}-{place:04d}")
        else:
            assert (group.purpose, group.index) == ("training", sum(name.startswith("t") for name in self.requested))
            assert num_before < self.limits.max_unresolved
        self.requested.append(group.group_id)
        self.committed = self.admission.cursor.to_bytes()
        return True

    @rule(count=st.integers(1, 9))
    def read_outcomes(self, count: int) -> None:
        for outcome in self.outcomes[self.num_outcomes_read : self.num_outcomes_read + count]:
            self.admission.observe_outcome(outcome)
            self.num_outcomes_read += 1

    @rule(count=st.integers(1, 9))
    def read_versions(self, count: int) -> None:
        for version in self.versions[self.num_versions_read : self.num_versions_read + count]:
            self.admission.observe_version(version)
            self.num_versions_read += 1

    @rule(data=st.data(), kind=st.sampled_from(["trained", "trained", "all_failed", "stale", "lost"]))
    def end_a_training_group(self, data: st.DataObject, kind: Any) -> None:
        group_ids = self.unread("t")
        if not group_ids:
            return
        group_id, by_learner = (
            data.draw(st.sampled_from(group_ids)),
            {"run_id": self.newest.run_id, "step": self.newest.step + 1},
        )
        if kind == "trained":
            self.outcomes.append(make_outcome(group_id, "trained", **by_learner))
        elif kind == "stale":
            self.outcomes.append(make_outcome(group_id, "dropped", reason="stale", **by_learner))
        else:
            self.outcomes.append(make_outcome(group_id, "dropped", reason=kind))

    @rule(data=st.data())
    def end_an_evaluation_group(self, data: st.DataObject) -> None:
        group_ids = self.unread("e")
        if group_ids:
            self.outcomes.append(make_outcome(data.draw(st.sampled_from(group_ids)), "evaluated"))

    @precondition(lambda self: self.outcomes)
    @rule()
    def tell_an_outcome_twice(self) -> None:
        self.outcomes.append(self.outcomes[-1])

    @precondition(lambda self: not self.newest.is_last)
    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        while count > 0 and not self.is_over(self.newest):
            step, count = self.newest.step + 1, count - 1
            is_last = step >= self.limits.num_steps
            self.versions.append(msgspec.structs.replace(self.newest, version=step, step=step, is_last=is_last))

    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        """The learner restarts from a checkpoint of its own lineage."""
        step = data.draw(st.integers(0, self.newest.step))
        kept = [entry for entry in self.newest.lineage if entry.last_step < step]
        cut = min((e.last_step for e in self.newest.lineage if e.last_step >= step), default=None)
        owner = next((e.run_id for e in self.newest.lineage if e.last_step == cut), self.newest.run_id)
        lineage = [*kept, LineageEntry(run_id=owner, last_step=step)]
        run_id = f"run-{len({v.run_id for v in self.versions})}"
        self.versions.append(make_version(step, run_id, lineage=lineage, is_last=step >= self.limits.num_steps))

    @rule(move=st.integers(-3, 6), shuffle=st.randoms(use_true_random=False))
    def move_the_end(self, move: int, shuffle: Any) -> None:
        """The run is started again with another number of steps; its learner has not published yet."""
        self.limits = msgspec.structs.replace(self.limits, num_steps=max(1, self.limits.num_steps + move))
        self.restart(shuffle, is_compacted=False, is_lost=False)

    @rule(shuffle=st.randoms(use_true_random=False), is_compacted=st.booleans(), is_lost=st.booleans())
    def restart(self, shuffle: Any, is_compacted: bool, is_lost: bool) -> None:
        """From the committed cursor and the tables, compacted or not, which are read in log order per key only; with a group
        asked for and lost before its commit, or not."""
        if is_lost:
            self.admission.next_group()
        admission = Admission(self.limits, Cursor.from_bytes(self.committed))
        outcomes = list(self.outcomes)
        if is_compacted:
            outcomes = list({outcome.group_id: outcome for outcome in outcomes}.values())
            shuffle.shuffle(outcomes)
        cut = shuffle.randint(0, len(outcomes))
        for outcome in outcomes[:cut]:
            admission.observe_outcome(outcome)
        for version in self.versions[-1:] if is_compacted else self.versions:
            admission.observe_version(version)
        for outcome in outcomes[cut:]:
            admission.observe_outcome(outcome)
        self.admission = admission
        self.num_outcomes_read, self.num_versions_read = len(self.outcomes), len(self.versions)

    @invariant()
    def counts_agree_with_the_records(self) -> None:
        if hasattr(self, "admission"):
            assert self.admission.num_unresolved == len(self.seen("t"))
            assert self.admission.num_unresolved_evaluations == len(self.seen("e"))

    @invariant()
    def it_is_done_only_with_everything_ended_and_the_last_round_made(self) -> None:
        if hasattr(self, "admission"):
            newest = self.newest_seen
            is_over = self.is_over(newest) and self.round_due() is None
            assert self.admission.is_done == (is_over and not self.seen("t") and not self.seen("e"))


Sampling.TestCase.settings = settings(stateful_step_count=50)
TestSampling = Sampling.TestCase


def test_memory_stays_small_over_a_long_run() -> None:
    admission = make_admission(max_unresolved=1, num_heldout=1)
    admission.observe_version(make_version(0))
    assert isinstance(admission.next_group(), NextGroup)
    for index in range(20_000):
        assert isinstance(admission.next_group(), NextGroup)
        admission.observe_outcome(make_outcome(f"t-{index:06d}", "trained", run_id="a", step=index // 8))
    ledger = admission._ledger
    assert len(ledger._codes) * ledger._codes.itemsize == 80_000
    assert len(ledger._steps) == 20_000 // 8 + 1
