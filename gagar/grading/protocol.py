"""The grading port: a mixed group in, a ranking of its passing members out.

Implementations: `rules` (measures of the patch), `none` (all tied: plain GRPO). A grading that is unusable raises
UnusableGradeError, and its group keeps the GRPO advantages.
"""

from collections.abc import Sequence
from typing import Protocol

from gagar.config import Kind, Seconds, WorkTable
from gagar.errors import GagarError
from gagar.records import Grade, Group, Verdict
from gagar.stream.handlers import References


class UnusableGradeError(GagarError):
    """A ranking that cannot be used; the group falls back to its GRPO advantages, and says so in its record."""


class Grader(Protocol):
    """Ranks passing members. Any number of groups at a time."""

    @property
    def name(self) -> str:
        """Kind and version, for the record."""

    async def open(self, references: References) -> None:
        """Called once before the first group; raises UnavailableError or ConfigError."""

    async def grade(self, group: Group) -> list[Grade]:
        """One grade for each passing member of an eligible group; raises UnusableGradeError."""

    async def close(self) -> None: ...


class GraderTable(WorkTable, Kind, frozen=True, kw_only=True):
    """[grader] in the run file: a kind of grader."""

    deadline_s: Seconds = 600.0
    """Of one grading; past it the group falls back to its GRPO advantages."""

    def make(self) -> Grader:
        """The grader, not yet open."""
        raise NotImplementedError


def passing_members(group: Group) -> list[Verdict]:
    """Members that a grader ranks, by sample_index."""
    return [member for member in group.members if member.status == "passed"]


def why_ineligible(group: Group) -> str:
    """Why redistribution has nothing to work on, for the record; empty if it has (rule 3 of the method)."""
    passing = passing_members(group)
    if len(passing) == len(group.members):
        return "ineligible: no valid failing member"
    if len(passing) < 2:
        return f"ineligible: {len(passing)} passing members of at least 2"
    if len({member.patch_digest for member in passing}) < 2:
        return "ineligible: all passing patches are the same"
    return ""


def check_grades(group: Group, grades: Sequence[Grade]) -> None:
    """Raises UnusableGradeError unless there is exactly one grade for each passing member and none for another.

    A missing id must not mean full credit, and a grade for a failing member must not shift the others' factors.
    """
    expected = [member.sample_index for member in passing_members(group)]
    got = sorted(grade.sample_index for grade in grades)
    if got != expected:
        raise UnusableGradeError(f"grades of {group.group_id}: expected one for each of {expected}, got {got}")
