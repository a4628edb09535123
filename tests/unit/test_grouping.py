"""The gatherer's reducer: over any interleaving, exactly one group or outcome for each requested group."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.groups.gathering import Gather, OpenGroup
from gagar.records import Group, LogRef, Outcome, RolloutRequest, Verdict, VerdictStatus
from gagar.stream.handlers import Reduced
from tests.builders import CLEAN, OUTSIDE, make_delivery, make_ref, make_request, make_verdict

GRACE_S = 30.0
ASKED_AT = 1000.0
DEADLINE = 1600.0
NOW = 1100.0


def requests(size: int, group_id: str = "t-000000", **fields: Any) -> list[RolloutRequest]:
    return [make_request(group_id, index, group_size=size, **fields) for index in range(size)]


def verdicts(statuses: Sequence[VerdictStatus | None], group_id: str = "t-000000", **fields: Any) -> list[Verdict]:
    """One for each status that is not None."""
    return [make_verdict(group_id, index, status, **fields) for index, status in enumerate(statuses) if status]


def fold(records: Sequence[Any], gather: Gather | None = None) -> tuple[OpenGroup, list[Reduced]]:
    """Applies records until the group closes; a record after that is an error."""
    gather = gather or Gather(GRACE_S)
    state = gather.start("t-000000")
    answers: list[Reduced] = []
    for record in records:
        assert not any(answer.is_closed for answer in answers)
        answers.append(gather.apply(state, make_delivery(record, at=ASKED_AT), NOW))
    return state, answers


def end_of(records: Sequence[Any]) -> Any:
    """The one output of a group that closes with its last record."""
    _, answers = fold(records)
    assert [answer.is_closed for answer in answers] == [False] * (len(answers) - 1) + [True]
    [output] = answers[-1].outputs
    return output


def test_a_mixed_group_goes_on_with_its_members_in_order() -> None:
    members = verdicts(["failed", "passed", "passed", "failed"])
    group = end_of([*requests(4), members[2], members[0], members[3], members[1]])
    assert isinstance(group, Group)
    assert group.members == members
    assert (group.group_size, group.num_invalid, group.num_missing) == (4, 0, 0)


@pytest.mark.parametrize(
    ("statuses", "reason"),
    [
        (["passed", "passed", "passed"], "all_passed"),
        (["failed", "failed", "failed"], "all_failed"),
        (["passed", "passed", "invalid"], "all_passed"),
        (["passed", "invalid", "invalid"], "too_few_valid"),
        (["invalid", "invalid", "invalid"], "too_few_valid"),
    ],
)
def test_a_group_that_teaches_nothing_is_dropped_with_the_reason(statuses: list[VerdictStatus], reason: str) -> None:
    outcome = end_of([*requests(3), *verdicts(statuses)])
    assert isinstance(outcome, Outcome)
    assert (outcome.kind, outcome.reason, outcome.step, outcome.run_id) == ("dropped", reason, -1, "")
    assert outcome.num_requested == 3
    assert outcome.num_valid == sum(status != "invalid" for status in statuses)


def test_invalid_members_are_left_out_of_a_mixed_group() -> None:
    group = end_of([*requests(4), *verdicts(["failed", "invalid", "passed", "invalid"])])
    assert [member.sample_index for member in group.members] == [0, 2]
    assert group.num_invalid == 2


def test_an_evaluation_ends_with_counts_versions_and_measures() -> None:
    name = "e-000020-0003"
    members = [
        make_verdict(name, 0, "passed", measures=CLEAN, policy_version_min=19, policy_version_max=20),
        make_verdict(name, 1, "passed", measures=OUTSIDE, policy_version_min=20, policy_version_max=21),
        make_verdict(name, 2, "failed", policy_version_min=-1, policy_version_max=-1),
        make_verdict(name, 3, "invalid", policy_version_min=3, policy_version_max=3),
    ]
    outcome = end_of([*requests(4, name, step=20), *members])
    assert (outcome.kind, outcome.reason, outcome.purpose, outcome.step) == ("evaluated", "", "evaluation", 20)
    assert (outcome.num_requested, outcome.num_valid, outcome.num_passed, outcome.num_clean) == (4, 3, 2, 1)
    assert (outcome.policy_version_min, outcome.policy_version_max) == (19, 21)
    assert outcome.num_sampled_tokens == 120
    assert outcome.at == NOW


@pytest.mark.parametrize("statuses", [["passed", "passed"], ["failed", "failed"], ["passed", "invalid"]])
def test_an_evaluation_is_never_dropped_for_being_uniform_or_small(statuses: list[VerdictStatus]) -> None:
    name = "e-000000-0000"
    assert end_of([*requests(2, name), *verdicts(statuses, name)]).kind == "evaluated"


def test_an_evaluation_without_a_valid_attempt_is_dropped() -> None:
    name = "e-000000-0000"
    outcome = end_of([*requests(2, name), *verdicts(["invalid", "invalid"], name)])
    assert (outcome.kind, outcome.reason) == ("dropped", "too_few_valid")


def test_a_group_of_which_nothing_arrives_is_lost_at_deadline_and_grace() -> None:
    gather = Gather(GRACE_S)
    state, _ = fold(requests(3), gather)
    assert gather.wake_at(state) == DEADLINE + GRACE_S
    assert not gather.expire(state, DEADLINE + GRACE_S - 0.001).is_closed
    expired = gather.expire(state, DEADLINE + GRACE_S)
    assert expired.is_closed
    [outcome] = expired.outputs
    assert isinstance(outcome, Outcome)
    assert (outcome.kind, outcome.reason, outcome.num_requested) == ("dropped", "lost", 3)


def test_an_expired_group_uses_the_members_that_it_has() -> None:
    gather = Gather(GRACE_S)
    state, _ = fold([*requests(4), *verdicts(["passed", None, "failed", None])], gather)
    [group] = gather.expire(state, DEADLINE + GRACE_S).outputs
    assert isinstance(group, Group)
    assert [member.sample_index for member in group.members] == [0, 2]
    assert (group.num_invalid, group.num_missing) == (0, 2)


def test_an_expired_group_with_one_verdict_has_too_few() -> None:
    gather = Gather(GRACE_S)
    state, _ = fold([*requests(4), *verdicts(["passed"])], gather)
    [outcome] = gather.expire(state, DEADLINE + GRACE_S).outputs
    assert isinstance(outcome, Outcome)
    assert outcome.reason == "too_few_valid"


def test_a_group_waits_for_all_its_requests_even_when_all_verdicts_are_in() -> None:
    first, *others = requests(3)
    _, answers = fold([first, *verdicts(["passed", "failed", "failed"]), *others])
    assert [answer.is_closed for answer in answers] == [False] * 5 + [True]


def test_verdicts_before_any_request_wait_without_a_deadline() -> None:
    gather = Gather(GRACE_S)
    state, _ = fold(verdicts(["passed", "failed"]), gather)
    assert gather.wake_at(state) is None
    assert not gather.expire(state, 1e12).is_closed


def test_duplicates_are_counted_and_change_nothing() -> None:
    gather = Gather(GRACE_S)
    kept = make_verdict(sample_index=0, status="passed")
    doubled = make_verdict(sample_index=0, status="failed")
    last = make_verdict(sample_index=1, status="failed")
    _, answers = fold([*requests(2), kept, doubled, make_request(sample_index=1, group_size=2), last], gather)
    [group] = answers[-1].outputs
    assert isinstance(group, Group)
    assert group.members == [kept, last]
    assert gather.num_duplicates == 2


def test_a_verdict_is_late_when_its_request_is_finished() -> None:
    gather = Gather(GRACE_S)
    verdict = make_delivery(make_verdict(request=make_ref("rollout-requests", 7)))
    finished = {make_ref("rollout-requests", 7)}
    assert gather.is_late(verdict, finished.__contains__)
    assert not gather.is_late(verdict, lambda ref: False)


def test_a_request_is_never_late() -> None:
    assert not Gather(GRACE_S).is_late(make_delivery(make_request()), lambda ref: True)


statuses = st.sampled_from(["passed", "failed", "invalid", None])
plans = st.lists(
    st.tuples(st.booleans(), st.lists(statuses, min_size=1, max_size=5), st.integers(0, 3)), min_size=1, max_size=4
)


class Runtime:
    """The stage runtime's part, as `gagar.stream.handlers` promises it: keys, closing, lateness."""

    def __init__(self) -> None:
        self.gather = Gather(GRACE_S)
        self.open: dict[str, OpenGroup] = {}
        self.inputs: dict[str, list[LogRef]] = {}
        self.finished: set[LogRef] = set()
        self.ended: dict[str, list[Any]] = {}

    def deliver(self, record: Any, ref: LogRef) -> None:
        delivery = make_delivery(record, ref.topic, ref.offset)
        key = record.group_id
        if key not in self.open and self.gather.is_late(delivery, self.finished.__contains__):
            self.finished.add(ref)
            return
        state = self.open.setdefault(key, self.gather.start(key))
        self.inputs.setdefault(key, []).append(ref)
        self._settle(key, self.gather.apply(state, delivery, NOW))

    def expire(self) -> None:
        for key, state in list(self.open.items()):
            if self.gather.wake_at(state) is not None:
                self._settle(key, self.gather.expire(state, DEADLINE + GRACE_S))

    def _settle(self, key: str, reduced: Reduced) -> None:
        self.ended.setdefault(key, []).extend(reduced.outputs)
        if reduced.is_closed:
            del self.open[key]
            self.finished.update(self.inputs.pop(key))


@given(plans, st.data())
def test_each_requested_group_ends_exactly_once_in_any_interleaving(plan: list[Any], data: st.DataObject) -> None:
    """Two logs, each in its order, read in any interleaving; verdicts doubled at will; the deadline; then the late ones."""
    request_log: list[Any] = []
    verdict_log: list[Any] = []
    for number, (is_evaluation, members, num_doubles) in enumerate(plan):
        group_id = f"{'e-000000' if is_evaluation else 't'}-{number:06d}"
        start = len(request_log)
        request_log += requests(len(members), group_id)
        made = [
            make_verdict(group_id, i, status, request=make_ref("rollout-requests", start + i))
            for i, status in enumerate(members)
            if status
        ]
        verdict_log += made + made[:num_doubles]
    verdict_log = data.draw(st.permutations(verdict_log))
    num_on_time = data.draw(st.integers(0, len(verdict_log)))

    runtime = Runtime()
    turns = data.draw(st.permutations([True] * len(request_log) + [False] * num_on_time))
    logs = {
        True: iter([(r, make_ref("rollout-requests", i)) for i, r in enumerate(request_log)]),
        False: iter([(v, make_ref("verdicts", i)) for i, v in enumerate(verdict_log)]),
    }
    for is_request in turns:
        runtime.deliver(*next(logs[is_request]))
    runtime.expire()
    for record, ref in logs[False]:
        runtime.deliver(record, ref)

    assert not runtime.open
    assert {key: len(outputs) for key, outputs in runtime.ended.items()} == {r.group_id: 1 for r in request_log}
    for [end] in runtime.ended.values():
        assert isinstance(end, Group | Outcome)
        if isinstance(end, Group):
            assert {m.status for m in end.members} == {"passed", "failed"}
