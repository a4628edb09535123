"""The advantage publisher, held against the laws that the audit checks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.advantage_publisher import Config, assign_advantages
from gagar.audit.advantage_laws import broken_laws
from gagar.config import convert
from gagar.errors import BadRecordError, ConfigError
from gagar.grading.rules import rank
from gagar.records import Grade, GradedGroup, Group, GroupAdvantages, PatchMeasures
from tests.builders import CLEAN, DEAD_CODE, OUTSIDE, make_group, make_verdict

CONFIG = Config()


def publish(group: Group, **fields: Any) -> GroupAdvantages:
    graded = GradedGroup(group=group, grader="rules/1", **{"grades": rank(group, 3), **fields})
    [result] = assign_advantages(graded, CONFIG)
    return result


def test_a_graded_group_gets_redistributed_advantages() -> None:
    result = publish(make_group([CLEAN, DEAD_CODE, DEAD_CODE, *[None] * 13]))
    assert [m.weight for m in result.members[:4]] == [1.0, 0.625, 0.625, 1.0]
    assert result.members[0].grpo_advantage == pytest.approx(0.8125)
    assert result.members[0].advantage == pytest.approx(1.0833333)
    assert result.rescale == pytest.approx(1.3333333)
    assert (result.was_capped, result.fallback) == (False, "")
    assert broken_laws(result) == []


def test_a_capped_group_is_recentred_and_says_so() -> None:
    result = publish(make_group([CLEAN, OUTSIDE, *[None] * 14]))
    assert (result.rescale, result.was_capped) == (1.5, True)
    assert result.members[0].advantage == pytest.approx(1.3234375)
    assert broken_laws(result) == []


def test_counts_complete_the_outcome_that_the_learner_will_write() -> None:
    result = publish(make_group([CLEAN, OUTSIDE, None], group_size=5))
    counts = (result.num_requested, result.num_valid, result.num_passed, result.num_clean, result.num_sampled_tokens)
    assert counts == (5, 3, 2, 1, 120)


def test_weights_of_the_run_file_take_the_place_of_the_methods() -> None:
    config = convert("advantage_publisher", {"weights": {"rejected": 0.5, "single": 0.25}}, Config)
    group = make_group([CLEAN, DEAD_CODE, OUTSIDE, None])
    [result] = assign_advantages(GradedGroup(group=group, grader="rules/1", grades=rank(group, 3)), config)
    assert [m.weight for m in result.members] == [1.0, 0.25, 0.5, 1.0]
    assert broken_laws(result) == []


@pytest.mark.parametrize("factor", [0, 1.5])
def test_a_weight_that_is_no_factor_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match=r"advantage_publisher\.weights\.top: expected more than 0, at most 1, got"):
        convert("advantage_publisher", {"weights": {"top": factor}}, Config)


def test_a_fallback_keeps_grpo_and_its_reason() -> None:
    result = publish(make_group([CLEAN, OUTSIDE, None]), fallback="timeout", grades=[])
    assert [m.advantage for m in result.members] == [m.grpo_advantage for m in result.members]
    assert (result.fallback, result.rescale) == ("timeout", 1.0)


@pytest.mark.parametrize(
    ("grades", "reason"),
    [
        ([Grade(sample_index=0, tier=1, position=0)], "unusable: grades of t-000000: expected one for each"),
        (
            [Grade(sample_index=0, tier=3, position=0), Grade(sample_index=1, tier=1, position=1)],
            "unusable: ranking: expected tiers in ascending order",
        ),
    ],
)
def test_grades_that_cannot_be_used_fall_back(grades: list[Grade], reason: str) -> None:
    result = publish(make_group([CLEAN, OUTSIDE, None]), grades=grades)
    assert result.fallback.startswith(reason)
    assert [m.weight for m in result.members] == [1.0, 1.0, 1.0]


def test_a_failing_member_without_tokens_counts_in_the_baseline_and_is_not_trained_on() -> None:
    members = make_group([CLEAN, OUTSIDE, None]).members
    group = Group(
        group_id="t-000000",
        task_id="task",
        group_size=4,
        members=[*members, make_verdict(sample_index=3, status="failed", tokens=None)],
    )
    result = publish(group)
    assert [m.sample_index for m in result.members] == [0, 1, 2]
    assert result.members[0].grpo_advantage == 0.5
    assert result.num_valid == 4
    assert broken_laws(result) == []


def test_a_passing_member_without_tokens_is_a_bad_record() -> None:
    group = Group(
        group_id="t-000000",
        task_id="task",
        group_size=2,
        members=[make_verdict(sample_index=0, tokens=None), make_verdict(sample_index=1, status="failed")],
    )
    with pytest.raises(BadRecordError, match="group t-000000/0: expected tokens of a passing member, got none"):
        publish(group)


kinds = st.sampled_from([CLEAN, DEAD_CODE, OUTSIDE, PatchMeasures(num_added_lines=40), None])


@given(st.lists(kinds, min_size=2, max_size=16).filter(lambda ms: 0 < sum(m is not None for m in ms) < len(ms)))
def test_every_published_group_keeps_the_laws(members: list[PatchMeasures | None]) -> None:
    assert broken_laws(publish(make_group(members))) == []


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"advantage_publisher.max_rescale: expected 1 to 100, got 0.5"):
        convert("advantage_publisher", {"max_rescale": 0.5}, Config)
