"""Grader: mixed groups in, the same with a ranking of their passing members out.

Input   groups         one Group
Output  graded-groups  one GradedGroup, same key
State   none

A grading that is unusable or takes too long never blocks or drops a group: it falls back to the GRPO advantages.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec

from gagar.config import require, require_duration
from gagar.grading.protocol import Grader, UnusableGradeError, check_grades, why_ineligible
from gagar.records import GradedGroup, Group
from gagar.stream.handlers import Delivery, Effect, References, Settings


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[grader] in the run file."""

    kind: Literal["rules", "none"] = "rules"
    """rules: by measures of the patch. none: all tied, plain GRPO."""
    deadline_s: float = 600.0
    """Of one grading; past it the group falls back."""
    size_slack_lines: int = 3
    """`rules`: a patch with no more lines than this above the smallest of its tie is tied with it."""

    def __post_init__(self) -> None:
        require_duration(self.deadline_s, "grader.deadline_s")
        require(self.size_slack_lines >= 0, "grader.size_slack_lines", "0 or more", self.size_slack_lines)


def make_grader(config: Config) -> Grader:
    """The grader that the configuration names."""
    if config.kind == "none":
        from gagar.grading.none import NoneGrader

        return NoneGrader()
    from gagar.grading.rules import RulesGrader

    return RulesGrader(config.size_slack_lines)


class GradeGroups(Effect):
    """Grades each group with a Grader."""

    def __init__(self, grader: Grader, deadline_s: float) -> None:
        self._grader = grader
        self._deadline_s = deadline_s

    async def open(self, references: References) -> None:
        await self._grader.open(references)

    async def handle(self, delivery: Delivery[Group]) -> Sequence[GradedGroup]:
        group = delivery.record
        fallback = why_ineligible(group)
        if fallback:
            return [GradedGroup(group=group, grader=self._grader.name, fallback=fallback)]
        try:
            async with asyncio.timeout(self._deadline_s):
                grades = await self._grader.grade(group)
            check_grades(group, grades)
        except UnusableGradeError as error:
            return [GradedGroup(group=group, grader=self._grader.name, fallback=f"unusable: {error}")]
        except TimeoutError:
            fallback = f"timeout: no grades after {self._deadline_s:g} s"
            return [GradedGroup(group=group, grader=self._grader.name, fallback=fallback)]
        return [GradedGroup(group=group, grader=self._grader.name, grades=grades)]

    async def close(self) -> None:
        await self._grader.close()


def main(settings: Settings[Config]) -> None:
    """Runs the stage until it is told to stop."""
    from gagar.cli.serve import serve
    from topology.stages import GRADER

    serve(GRADER, settings, GradeGroups(make_grader(settings.config), settings.config.deadline_s))
