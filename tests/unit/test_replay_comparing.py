"""What counts as a change of an answer, and what as a fact of the run of its handler."""

import math
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gagar.grading.rules import rank
from gagar.records import GradedGroup, Outcome, Verdict
from gagar.replay.comparing import (
    MAX_VALUES,
    OTHERS,
    ChangeTally,
    FieldChange,
    changes_between,
    is_run_fact,
)
from tests.builders import CLEAN, DEAD_CODE, make_group, make_outcome, make_verdict
from topology.replay import REPLAYED

GROUP = make_group([CLEAN, DEAD_CODE, None])
GRADED = GradedGroup(group=GROUP, grader="rules/1", grades=rank(GROUP, 0))


@pytest.mark.parametrize("record", [make_verdict(), GROUP, GRADED, make_outcome()], ids=lambda it: type(it).__name__)
def test_a_record_is_equal_to_itself(record: Any) -> None:
    assert changes_between(record, msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=type(record))) == []


def test_when_and_how_long_a_handler_worked_is_left_out_at_every_depth() -> None:
    assert changes_between(make_verdict(duration_s=1.0), make_verdict(duration_s=2.0)) == []
    assert changes_between(make_outcome(at=1.0), make_outcome(at=2.0)) == []
    members = [replace(member, duration_s=9.0) for member in GROUP.members]
    assert changes_between(GROUP, replace(GROUP, members=members)) == []


def times_of(record_type: type[Any]) -> list[msgspec.structs.FieldInfo]:
    return [it for it in msgspec.structs.fields(record_type) if it.name == "at" or it.name.endswith(("_s", "_at"))]


def test_every_time_in_an_answer_of_a_replayed_stage_is_marked_as_a_fact_of_the_run() -> None:
    answers = {topic.record for stage in REPLAYED for topic in stage.outputs}
    found = [(record_type, field) for record_type in answers for field in times_of(record_type)]
    assert {(record_type, field.name) for record_type, field in found} == {(Verdict, "duration_s"), (Outcome, "at")}
    assert all(is_run_fact(field.type) for _, field in found)


def test_nothing_else_is_marked() -> None:
    marked = {
        (it, field.name)
        for it in {topic.record for stage in REPLAYED for topic in stage.outputs}
        for field in msgspec.structs.fields(it)
        if is_run_fact(field.type)
    }
    assert marked == {(Verdict, "duration_s"), (Outcome, "at")}


def test_members_are_found_by_their_sample_whatever_their_place() -> None:
    assert changes_between(GRADED, replace(GRADED, grades=GRADED.grades[::-1])) == []
    changed = [GRADED.grades[1], replace(GRADED.grades[0], tier=3)]
    [change] = changes_between(GRADED, replace(GRADED, grades=changed))
    index = GRADED.grades[0].sample_index
    assert (change.path, change.before, change.now, change.field) == (f"grades[{index}].tier", 1, 3, "grades.tier")


def test_a_member_that_is_not_there_any_more_is_a_change() -> None:
    [change] = changes_between(GRADED, replace(GRADED, grades=GRADED.grades[:1]))
    assert (change.before, change.now) == (GRADED.grades[1], None)


def test_another_kind_of_record_is_one_change() -> None:
    expected = FieldChange(path="record", before="group/1", now="outcome/1 dropped all_failed")
    assert changes_between(GROUP, make_outcome(kind="dropped", reason="all_failed")) == [expected]


@pytest.mark.parametrize(("before", "now"), [(0.1, math.nextafter(0.1, 1)), (0.0, -0.0)])
def test_numbers_are_equal_only_bit_for_bit(before: float, now: float) -> None:
    from gagar.records import GroupAdvantages

    def advantages(shift: float) -> GroupAdvantages:
        return GroupAdvantages(
            group_id="g", task_id="t", members=[], grader="", fallback="", rescale=1.0, was_capped=False, shift=shift
        )

    assert changes_between(advantages(before), advantages(before)) == []
    assert [change.path for change in changes_between(advantages(before), advantages(now))] == ["shift"]


def test_a_tally_counts_by_field_with_the_largest_difference_and_which_text_became_which() -> None:
    tally = ChangeTally()
    tally.add(
        "g", "t", [FieldChange(path="members[0].weight", before=0.2, now=0.5), FieldChange(path="status", before="a", now="b")]
    )
    tally.add("g", "t", [FieldChange(path="members[7].weight", before=0.9, now=0.1)])
    assert tally.fields["members.weight"].count == 2
    assert tally.fields["members.weight"].largest == pytest.approx(0.8)
    assert tally.fields["status"].values == {"a -> b": 1}
    assert (tally.num_groups, tally.tasks) == (1, {"t": 2})


def test_a_tally_stays_small_however_many_texts_there_are() -> None:
    tally = ChangeTally()
    for number in range(1000):
        tally.add("g", "t", [FieldChange(path="reason", before="", now=f"{number}")])
    assert len(tally.fields["reason"].values) == MAX_VALUES + 1
    assert tally.fields["reason"].values[OTHERS] == 1000 - MAX_VALUES
