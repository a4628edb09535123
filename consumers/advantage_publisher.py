"""Advantage publisher: graded groups in, advantages out.

Input   graded-groups  one GradedGroup
Output  advantages     one GroupAdvantages, same key
State   none
"""

from functools import partial
from typing import Annotated

from msgspec import Meta

from gagar.config import Table
from gagar.errors import BadRecordError
from gagar.grading.protocol import UnusableGradeError, check_grades
from gagar.groups.advantages import TierWeights, grpo_advantages, redistribute, tier_weights
from gagar.records import GradedGroup, GroupAdvantages, LogRef, MemberAdvantage, Verdict
from gagar.stream.handlers import Transform
from topology.resources import Resources


class Config(Table, frozen=True, kw_only=True):
    """[advantage_publisher] in the run file."""

    max_rescale: Annotated[float, Meta(ge=1, le=100)] = 1.5
    """Upper bound of the factor that restores the passing sum."""
    weights: TierWeights = TierWeights()
    """What tier and place of a passing member make of its advantage."""


def member_weights(graded: GradedGroup, weights: TierWeights) -> tuple[list[float], str]:
    """Factor of each member, [G], and why all are 1 if the grades do not count."""
    group = graded.group
    ones = [1.0] * len(group.members)
    if graded.fallback:
        return ones, graded.fallback
    try:
        check_grades(group, graded.grades)
        factors = tier_weights(graded.grades, weights)
    except (UnusableGradeError, ValueError) as error:
        return ones, f"unusable: {error}"
    by_index = {grade.sample_index: factor for grade, factor in zip(graded.grades, factors, strict=True)}
    return [by_index.get(member.sample_index, 1.0) for member in group.members], ""


def assign_advantages(graded: GradedGroup, config: Config) -> list[GroupAdvantages]:
    """The group's advantages; raises BadRecordError for a passing member without tokens."""
    members = graded.group.members
    weights, fallback = member_weights(graded, config.weights)
    passed = [member.status == "passed" for member in members]
    plain = grpo_advantages([member.reward for member in members])
    result = redistribute(plain, passed, weights, config.max_rescale)
    rows = zip(members, plain, result.weights, result.advantages, strict=True)
    trainable = [
        _member(member, tokens, grpo, weight, advantage)
        for member, grpo, weight, advantage in rows
        if (tokens := _tokens(member)) is not None
    ]
    return [
        GroupAdvantages(
            group_id=graded.group_id,
            task_id=graded.group.task_id,
            members=trainable,
            grader=graded.grader,
            fallback=fallback,
            rescale=result.rescale,
            was_capped=result.was_capped,
            shift=result.shift,
            num_requested=graded.group.group_size,
            num_valid=len(members),
            num_passed=sum(passed),
            num_clean=sum(member.measures.is_clean for member in members if member.status == "passed"),
            num_sampled_tokens=sum(member.attempt.num_sampled_tokens for member in members),
        )
    ]


def _tokens(member: Verdict) -> LogRef | None:
    if member.attempt.tokens is None and member.status == "passed":
        what = f"group {member.group_id}/{member.sample_index}"
        raise BadRecordError(f"{what}: expected tokens of a passing member, got none")
    return member.attempt.tokens


def _member(member: Verdict, tokens: LogRef, grpo: float, weight: float, advantage: float) -> MemberAdvantage:
    return MemberAdvantage(
        sample_index=member.sample_index,
        attempt=member.attempt,
        trajectory=member.trajectory,
        reward=member.reward,
        grpo_advantage=grpo,
        weight=weight,
        advantage=advantage,
    )


def make(resources: Resources, config: Config) -> Transform:
    """The stage's handler."""
    return Transform(partial(assign_advantages, config=config))
