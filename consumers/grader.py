"""Grader: mixed groups in, the same with a ranking of their passing members out.

Input   groups         one Group
Output  graded-groups  one GradedGroup, same key
State   none

A grading that is unusable or takes too long never blocks or drops a group: it falls back to the GRPO advantages.
"""

import asyncio
from collections.abc import Sequence

from gagar.grading.kinds import GraderKinds
from gagar.grading.protocol import Grader, GraderTable, UnusableGradeError, check_grades, why_ineligible
from gagar.records import GradedGroup, Group
from gagar.stream.handlers import Delivery, Effect, References
from topology.resources import Resources

Config = GraderKinds


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


def make(resources: Resources, config: GraderTable) -> Effect:
    """The stage's handler."""
    return GradeGroups(config.make(), config.deadline_s)
