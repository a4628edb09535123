"""The grader that tells nothing apart: all passing members tied, so the group keeps its GRPO advantages. The baseline."""

from gagar.grading.protocol import Grader, GraderTable, passing_members
from gagar.records import Grade, Group
from gagar.stream.handlers import References


class NoGrading(GraderTable, frozen=True, kw_only=True, tag="none"):
    """All passing members tied: plain GRPO."""

    def make(self) -> Grader:
        return TiedGrader()


class TiedGrader:
    """Plain GRPO as a grader."""

    name = "none/1"

    async def open(self, references: References) -> None:
        """Nothing to open."""

    async def grade(self, group: Group) -> list[Grade]:
        return [Grade(sample_index=member.sample_index, tier=1, position=0) for member in passing_members(group)]

    async def close(self) -> None:
        """Nothing to close."""
