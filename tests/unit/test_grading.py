"""Graders by rule and by nothing; eligibility; what is refused as grades."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.grading.plain import TiedGrader
from gagar.grading.protocol import Grader, UnusableGradeError, check_grades, why_ineligible
from gagar.grading.rules import RulesGrader, rank, tier_of
from gagar.groups.advantages import tier_weights
from gagar.records import Grade, Group, PatchMeasures
from tests.builders import CLEAN, DEAD_CODE, OUTSIDE, make_group, make_verdict

SLACK = 3


def lines(num: int, **fields: int) -> PatchMeasures:
    return PatchMeasures(num_added_lines=num, num_files=1, **fields)


def factors(measures: Sequence[PatchMeasures | None], slack: int = SLACK) -> dict[int, float]:
    grades = rank(make_group(measures), slack)
    return {grade.sample_index: factor for grade, factor in zip(grades, tier_weights(grades), strict=True)}


def test_clean_dead_and_outside_get_one_five_eighths_and_a_fifth() -> None:
    assert factors([OUTSIDE, None, CLEAN, DEAD_CODE, CLEAN]) == {0: 0.2, 2: 1.0, 3: 0.625, 4: 1.0}


def test_an_edit_outside_the_task_weighs_more_than_a_dead_statement() -> None:
    assert tier_of(PatchMeasures(num_files_out_of_scope=1, num_dead_statements=5)) == 3
    assert tier_of(DEAD_CODE) == 2
    assert tier_of(CLEAN) == 1


def test_only_passing_members_are_ranked() -> None:
    assert [grade.sample_index for grade in rank(make_group([None, CLEAN, None]), SLACK)] == [1]


def test_a_few_lines_more_are_a_tie_and_many_are_not() -> None:
    assert factors([lines(5), lines(8), lines(9), lines(30)]) == {0: 1.0, 1: 1.0, 2: 0.9, 3: 0.9}


def test_slack_is_measured_from_the_smallest_of_the_tie_so_that_it_does_not_creep() -> None:
    assert [g.position for g in rank(make_group([lines(1), lines(3), lines(5)]), 2)] == [0, 0, 1]


def test_added_and_removed_lines_both_count() -> None:
    less = PatchMeasures(num_added_lines=2)
    more = PatchMeasures(num_added_lines=2, num_removed_lines=1)
    assert factors([more, less], slack=0) == {1: 1.0, 0: 0.9}


def test_evidence_says_what_was_held_against_a_member() -> None:
    assert [grade.evidence for grade in rank(make_group([CLEAN, DEAD_CODE, OUTSIDE]), SLACK)] == [
        [],
        ["dead statements: 1"],
        ["files outside the task: 1"],
    ]


measures = st.builds(
    PatchMeasures,
    num_added_lines=st.integers(0, 12),
    num_removed_lines=st.integers(0, 12),
    num_files_out_of_scope=st.integers(0, 2),
    num_dead_statements=st.integers(0, 2),
)


@given(st.lists(st.one_of(st.none(), measures), min_size=1, max_size=12), st.integers(0, 5))
def test_every_ranking_is_one_that_the_publisher_accepts(members: list[PatchMeasures | None], slack: int) -> None:
    group = make_group(members)
    grades = rank(group, slack)
    check_grades(group, grades)
    tier_weights(grades)


@given(st.lists(measures, min_size=1, max_size=12), st.integers(0, 5), st.randoms(use_true_random=False))
def test_equal_measures_tie_and_the_order_of_members_does_not_matter(
    members: list[PatchMeasures], slack: int, shuffler: random.Random
) -> None:
    shuffled = list(members)
    shuffler.shuffle(shuffled)
    by_measures = [
        {(members_[grade.sample_index], grade.position, grade.tier) for grade in rank(make_group(members_), slack)}
        for members_ in (members, shuffled)
    ]
    assert by_measures[0] == by_measures[1]
    assert len(by_measures[0]) == len(set(members))


@pytest.mark.parametrize("grader", [RulesGrader(SLACK), TiedGrader()])
async def test_a_grader_gives_one_grade_for_each_passing_member(grader: Grader) -> None:
    group = make_group([OUTSIDE, None, CLEAN, DEAD_CODE])
    check_grades(group, await grader.grade(group))


async def test_the_grader_none_ties_all() -> None:
    grades = await TiedGrader().grade(make_group([OUTSIDE, None, CLEAN]))
    assert {(grade.tier, grade.position) for grade in grades} == {(1, 0)}


def make_twins() -> Group:
    members = [make_verdict(sample_index=i, status="passed", patch_digest="same") for i in (0, 1)]
    return Group(
        group_id="t-000000", task_id="task", group_size=3, members=[*members, make_verdict(sample_index=2, status="failed")]
    )


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (make_group([CLEAN, DEAD_CODE, None]), ""),
        (make_group([CLEAN, DEAD_CODE]), "ineligible: no valid failing member"),
        (make_group([CLEAN, None]), "ineligible: 1 passing members of at least 2"),
        (make_group([None, None]), "ineligible: 0 passing members of at least 2"),
        (make_twins(), "ineligible: all passing patches are the same"),
    ],
)
def test_a_group_is_eligible_with_a_failing_member_and_two_different_passing_ones(group: Group, reason: str) -> None:
    assert why_ineligible(group) == reason


@pytest.mark.parametrize("indices", [[0], [0, 1, 2], [0, 0, 2], [0, 1], []])
def test_grades_for_other_members_than_the_passing_ones_are_unusable(indices: list[int]) -> None:
    grades = [Grade(sample_index=index, tier=1, position=0) for index in indices]
    with pytest.raises(UnusableGradeError, match=r"grades of t-000000: expected one for each of \[0, 2\], got"):
        check_grades(make_group([CLEAN, None, DEAD_CODE]), grades)
