"""The grader stage: nothing that a grader does blocks or drops a group."""

import asyncio
from collections.abc import Sequence

import pytest

from consumers.grader import Config, GradeGroups
from gagar.config import convert
from gagar.errors import ConfigError
from gagar.grading.plain import TiedGrader
from gagar.grading.protocol import GraderTable, UnusableGradeError
from gagar.grading.rules import RulesGrader
from gagar.records import Grade, GradedGroup, Group
from gagar.stream.handlers import References
from tests.builders import CLEAN, DEAD_CODE, OUTSIDE, make_delivery, make_group

MIXED = make_group([CLEAN, DEAD_CODE, None])


class FakeGrader:
    """Answers with what it was given, or raises it, or never answers."""

    name = "fake/1"

    def __init__(self, answer: Sequence[Grade] | Exception | None) -> None:
        self.answer = answer
        self.num_asked = 0

    async def open(self, references: References) -> None: ...

    async def grade(self, group: Group) -> list[Grade]:
        self.num_asked += 1
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return list(self.answer or ())

    async def close(self) -> None: ...


async def graded(grader: FakeGrader, group: Group = MIXED, deadline_s: float = 60.0) -> GradedGroup:
    [result] = await GradeGroups(grader, deadline_s).handle(make_delivery(group, "groups"))
    assert result.group == group
    assert result.grader == "fake/1"
    return result


def grade(sample_index: int, position: int) -> Grade:
    return Grade(sample_index=sample_index, tier=1, position=position)


async def test_usable_grades_go_into_the_record() -> None:
    grades = [grade(1, 0), grade(0, 1)]
    result = await graded(FakeGrader(grades))
    assert (result.grades, result.fallback) == (grades, "")


async def test_an_unusable_grading_falls_back() -> None:
    result = await graded(FakeGrader(UnusableGradeError("no JSON in it")))
    assert (result.grades, result.fallback) == ([], "unusable: no JSON in it")


async def test_a_missing_grade_falls_back_and_does_not_mean_full_credit() -> None:
    result = await graded(FakeGrader([grade(0, 0)]))
    assert result.grades == []
    assert result.fallback.startswith("unusable: grades of t-000000: expected one for each of [0, 1], got [0]")


async def test_a_grading_that_never_ends_falls_back_at_its_deadline() -> None:
    result = await graded(FakeGrader(None), deadline_s=0.001)
    assert result.fallback == "timeout: no grades after 0.001 s"


async def test_an_ineligible_group_is_not_graded() -> None:
    grader = FakeGrader([])
    result = await graded(grader, make_group([CLEAN, None]))
    assert result.fallback == "ineligible: 1 passing members of at least 2"
    assert grader.num_asked == 0


async def test_a_fault_of_the_grader_itself_is_left_to_the_runtime() -> None:
    with pytest.raises(ZeroDivisionError):
        await graded(FakeGrader(ZeroDivisionError()))


@pytest.mark.parametrize(("kind", "grader_type"), [("rules", RulesGrader), ("none", TiedGrader)])
async def test_the_kind_names_the_grader(kind: str, grader_type: type) -> None:
    table: GraderTable = convert("grader", {"kind": kind}, Config)
    grader = table.make()
    assert isinstance(grader, grader_type)
    [result] = await GradeGroups(grader, 1.0).handle(make_delivery(make_group([OUTSIDE, CLEAN, None])))
    assert (len(result.grades), result.fallback, result.grader) == (2, "", f"{kind}/1")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "oracle"}, "grader.kind: "),
        ({"deadline_s": 0}, "grader.deadline_s: expected more than 0, at most .* got 0"),
        ({"size_slack_lines": -1}, "grader.size_slack_lines: expected 0 or more, got -1"),
    ],
)
def test_an_impossible_table_is_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        convert("grader", table, Config)
