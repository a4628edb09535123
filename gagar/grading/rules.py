"""The grader by rule: passing patches ordered by what the verifier measured, no model asked.

Tier 1: clean. Tier 2: dead statements. Tier 3: edits outside the task's scope. Within a tier by the patch's size in
lines, where a few lines more or less say nothing about quality and are a tie. With few clean sizes that makes the factors
1.0, 0.625 and 0.2.
"""

from typing import Annotated, Literal

from msgspec import Meta

from gagar.grading.protocol import Grader, GraderTable, passing_members
from gagar.records import Grade, Group, PatchMeasures
from gagar.stream.handlers import References


class Rules(GraderTable, frozen=True, kw_only=True, tag="rules"):
    """Ranks by measures of the patches."""

    size_slack_lines: Annotated[int, Meta(ge=0)] = 3
    """A patch with no more lines than this above the smallest of its tie is tied with it."""

    def make(self) -> Grader:
        return RulesGrader(self.size_slack_lines)


class RulesGrader:
    """Ranks by `PatchMeasures`."""

    name = "rules/1"

    def __init__(self, size_slack_lines: int) -> None:
        """`size_slack_lines`: patches of a tier that exceed the smallest of their tie by no more are tied with it."""
        self._size_slack_lines = size_slack_lines

    async def open(self, references: References) -> None:
        """Nothing to open: the measures are in the group."""

    async def grade(self, group: Group) -> list[Grade]:
        return rank(group, self._size_slack_lines)

    async def close(self) -> None:
        """Nothing to close."""


def tier_of(measures: PatchMeasures) -> Literal[1, 2, 3]:
    """1 clean, 2 dead statements, 3 edits outside the task."""
    if measures.num_files_out_of_scope:
        return 3
    return 2 if measures.num_dead_statements else 1


def size_of(measures: PatchMeasures) -> int:
    """Lines that the patch adds and removes."""
    return measures.num_added_lines + measures.num_removed_lines


def rank(group: Group, size_slack_lines: int) -> list[Grade]:
    """Grades of the passing members, best first, equal measures tied; by sample_index within a tie."""
    ordered = sorted(passing_members(group), key=lambda m: (tier_of(m.measures), size_of(m.measures), m.sample_index))
    grades: list[Grade] = []
    tied: tuple[int, int] | None = None
    position = -1
    for member in ordered:
        tier, size = tier_of(member.measures), size_of(member.measures)
        if tied is None or tied[0] != tier or size > tied[1] + size_slack_lines:
            tied, position = (tier, size), position + 1
        evidence = _evidence(member.measures)
        grades.append(Grade(sample_index=member.sample_index, tier=tier, position=position, evidence=evidence))
    return grades


def _evidence(measures: PatchMeasures) -> list[str]:
    found = []
    if measures.num_files_out_of_scope:
        found.append(f"files outside the task: {measures.num_files_out_of_scope}")
    if measures.num_dead_statements:
        found.append(f"dead statements: {measures.num_dead_statements}")
    return found
