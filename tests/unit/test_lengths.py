"""What becomes of attempts by length: exact tenths, what is left out, and a bias against long ones, which is told."""

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gagar.audit.fold import Audit
from gagar.audit.lengths import Lengths, Tenth, bias_of
from gagar.audit.result import AuditResult
from gagar.audit.view import as_lines, as_object
from gagar.records import AttemptTimes
from tests.builders import CLEAN, make_delivery, make_group, make_outcome, make_request, make_verdict, make_version
from tests.contract.world import make_trajectory

NUM_GROUPS = 50
SIZE = 4


def tenths_of(attempts: Sequence[tuple[float, bool, bool]]) -> list[Tenth]:
    with Lengths() as lengths:
        lengths.add(attempts)
        return lengths.tenths()


def audited(cut_s: float = 1e9, dropped: Sequence[int] = (), waited: Sequence[int] = ()) -> AuditResult:
    """Groups whose attempts take 1 to 200 s; those that would take longer than `cut_s` are cut there on account of the
    infrastructure. Groups of number `dropped` are stale, all attempts of those in `waited` never began."""
    audit = Audit()
    for number in range(NUM_GROUPS):
        name = f"t-{number:06d}"
        for index in range(SIZE):
            own_s = 0.0 if number in waited else 1.0 + number * SIZE + index
            is_cut = own_s > cut_s or number in waited
            times = AttemptTimes(queue_s=3.0, agent_s=min(own_s, cut_s))
            request = make_request(name, index, group_size=SIZE)
            trajectory = make_trajectory(
                request,
                infrastructure=is_cut,
                num_sampled_tokens=0 if number in waited else 5,
                times=times,
                duration_s=times.total_s,
            )
            for record in (request, trajectory, make_verdict(name, index, "invalid" if is_cut else "passed")):
                audit.apply(make_delivery(record))
        how = {"kind": "dropped", "reason": "stale"} if number in dropped else {"kind": "dropped", "reason": "all_passed"}
        audit.apply(make_delivery(make_outcome(name, **how)))
    return audit.result()


def test_a_run_that_loses_nothing_is_told_in_no_line() -> None:
    result = audited()
    assert [tenth.num_attempts for tenth in result.tenths] == [20] * 10
    assert [tenth.up_to_s for tenth in result.tenths] == [20.0 * number for number in range(1, 11)]
    assert not [line for line in as_lines(result) if line.startswith(("attempts", "waited", "bias", "  "))]


def test_a_bias_against_long_attempts_is_seen_and_told() -> None:
    result = audited(cut_s=185.5)
    assert [tenth.num_invalid for tenth in result.tenths] == [0] * 9 + [15]
    lines = list(as_lines(result))
    assert "           up to 185.50 s: 75.0% invalid, 0.0% dropped, of 20" in lines
    [bias] = [line for line in lines if line.startswith("bias")]
    assert "75.0% of the longest tenth came to nothing, 0.0% of the others" in bias


def test_groups_that_are_dropped_for_being_long_are_seen_as_well() -> None:
    result = audited(dropped=range(45, 50))
    assert [tenth.num_dropped for tenth in result.tenths] == [0] * 9 + [20]
    assert [line for line in as_lines(result) if line.startswith("bias")]


def test_losses_that_know_no_length_are_no_bias() -> None:
    result = audited(dropped=range(0, 50, 10))
    assert [tenth.num_dropped for tenth in result.tenths] == [4, 0] * 5
    lines = list(as_lines(result))
    assert not [line for line in lines if line.startswith("bias")]
    assert "attempts   by tenths, the shortest own work first:" in lines


def test_attempts_that_never_began_have_no_length_and_are_counted() -> None:
    result = audited(waited=range(5))
    assert (result.num_never_begun, sum(tenth.num_attempts for tenth in result.tenths)) == (20, 180)
    assert not any(tenth.num_invalid for tenth in result.tenths)
    assert "waited     20 attempts until their deadline: invalid, no length" in list(as_lines(result))


def test_programs_get_the_tenths() -> None:
    told = json.loads(msgspec.json.encode(as_object(audited(cut_s=185.5))))
    assert told["tenths"][9] == {"up_to_s": 185.5, "num_attempts": 20, "num_invalid": 15, "num_dropped": 0}


def test_an_attempt_that_came_too_late_for_its_group_is_lost() -> None:
    """Members 0 and 1 made the group; of the two others one is invalid."""
    audit = Audit()
    for index in range(4):
        request = make_request("t-1", index)
        trajectory = make_trajectory(request, infrastructure=index == 2, num_sampled_tokens=5)
        for record in (request, replace(trajectory, times=AttemptTimes(agent_s=index), duration_s=index)):
            audit.apply(make_delivery(record))
    audit.apply(make_delivery(make_group([CLEAN, None], "t-1")))
    for end in (make_outcome("t-1", "trained"), make_version(0), make_version(1)):
        audit.apply(make_delivery(end))
    assert [(it.up_to_s, it.num_invalid, it.num_dropped) for it in audit.result().tenths] == [
        (0.0, 0, 0),
        (1.0, 0, 0),
        (2.0, 1, 0),
        (3.0, 0, 1),
    ]


def test_groups_in_flight_are_in_no_tenth() -> None:
    audit = Audit()
    audit.apply(make_delivery(make_request("t-1", 0)))
    audit.apply(make_delivery(make_trajectory(make_request("t-1", 0))))
    assert audit.result().tenths == []


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans(), st.booleans()), max_size=60))
def test_tenths_are_a_partition_in_order(attempts: list[tuple[float, bool, bool]]) -> None:
    tenths = tenths_of(attempts)
    assert len(tenths) == min(10, len(attempts))
    assert sum(tenth.num_attempts for tenth in tenths) == len(attempts)
    assert sum(tenth.num_invalid for tenth in tenths) == sum(is_invalid for _, is_invalid, _ in attempts)
    assert max((tenth.num_attempts for tenth in tenths), default=0) - min((t.num_attempts for t in tenths), default=0) <= 1
    ordered = sorted(own_s for own_s, _, _ in attempts)
    ends = [sum(tenth.num_attempts for tenth in tenths[: number + 1]) - 1 for number in range(len(tenths))]
    assert [tenth.up_to_s for tenth in tenths] == [ordered[end] for end in ends]


@pytest.mark.parametrize(("num_lost", "is_told"), [(3, False), (12, True)])
def test_a_difference_that_chance_explains_is_no_bias(num_lost: int, is_told: bool) -> None:
    usual = Tenth(up_to_s=1.0, num_attempts=40, num_invalid=1, num_dropped=0)
    assert (bias_of([usual] * 9 + [replace(usual, num_invalid=num_lost)]) is not None) == is_told
