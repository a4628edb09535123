"""The gatherer's replay goes by the times of the records alone."""

from pathlib import Path
from typing import Any

import pytest

from gagar.records import Group, LogRef, Outcome
from gagar.replay.answers import StageAnswer, read_answers
from gagar.replay.selection import Selection
from gagar.stream.transport import Partition
from tests.builders import make_outcome, make_request, make_verdict
from tests.replays import Past
from topology.stages import GATHERER

DUE = 640.0
"""Of a group that is asked for at 10, with 600 s and 30 s of grace."""


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(tmp_path, num_partitions=1)


def ask(past: Past, group_id: str, at: float = 10.0) -> list[LogRef]:
    return [past.write(make_request(group_id, i, group_size=2), at=at) for i in range(2)]


def answer(past: Past, group_id: str, requests: list[LogRef], *times: float) -> None:
    """A verdict of each sample at its time: the first passes, others do not."""
    for index, at in enumerate(times):
        status: Any = "failed" if index else "passed"
        past.write(make_verdict(group_id, index, status, request=requests[index]), at=at)


async def answers_of(past: Past, *overrides: str, **chosen: Any) -> list[StageAnswer]:
    await past.replay(GATHERER, *overrides, **chosen)
    return list(read_answers(past.directory / "replay"))


async def test_a_group_closes_by_its_last_verdict_if_that_came_in_time(past: Past) -> None:
    answer(past, "t-0", ask(past, "t-0"), 20.0, DUE - 1)
    [it] = await answers_of(past)
    [group] = it.outputs
    assert isinstance(group, Group)
    assert [member.sample_index for member in group.members] == [0, 1]


async def test_a_group_expires_before_a_record_later_than_its_deadline_and_that_one_goes_nowhere(
    past: Past,
) -> None:
    answer(past, "t-0", ask(past, "t-0"), 20.0, DUE + 1)
    [it] = await answers_of(past)
    [outcome] = it.outputs
    assert isinstance(outcome, Outcome)
    assert (outcome.reason, outcome.num_valid, outcome.at) == ("too_few_valid", 1, DUE + 1)
    assert not it.is_partial


async def test_what_was_due_by_the_last_record_of_the_run_has_ended_and_what_was_not_is_in_flight(past: Past) -> None:
    ask(past, "t-0")
    ask(past, "t-1", at=100.0)
    past.write(make_outcome("t-9", "dropped", reason="lost"), at=DUE + 1)
    [it] = await answers_of(past)
    assert (it.key, it.outputs[0].reason) == ("t-0", "lost")  # type: ignore[union-attr]


async def test_another_time_of_grace_changes_how_a_group_ends(past: Past) -> None:
    answer(past, "t-0", ask(past, "t-0"), 20.0, DUE + 1)
    past.write(make_outcome("t-0", "dropped", reason="too_few_valid", num_requested=2, num_valid=1, num_passed=1), at=DUE)
    result = await past.replay(GATHERER, "gatherer.grace_s=60")
    assert (result.records, result.changed) == (1, 1)
    assert result.fields["record"].values == {"outcome/1 dropped too_few_valid -> group/1": 1}


async def test_a_group_whose_verdicts_retention_took_says_nothing_and_is_named(past: Past) -> None:
    answer(past, "t-0", ask(past, "t-0"), 20.0, 21.0)
    answer(past, "t-1", ask(past, "t-1", at=30.0), 40.0, 41.0)
    past.log.truncate(Partition("verdicts", 0), 1)
    past.write(make_outcome("t-9", "trained"), at=DUE + 100)
    result = await past.replay(GATHERER)
    assert (result.records, result.missing, result.missing_names) == (2, 1, ["t-0"])
    assert (result.changed, result.unrecorded) == (0, 1)
    assert result.retired == ["verdicts[0]: offsets below 1 are gone: retention took them"]


async def test_a_trained_outcome_is_the_learners_and_no_answer_of_the_gatherer(past: Past) -> None:
    requests = ask(past, "t-0")
    answer(past, "t-0", requests, 20.0, 21.0)
    [it] = await answers_of(past, name="replay")
    past.write(it.outputs[0], at=22.0)
    past.write(make_outcome("t-0", "trained"), at=30.0)
    result = await past.replay(GATHERER, name="again")
    assert (result.equal, result.changed, result.missing) == (1, 0, 0)


async def test_a_group_is_chosen_by_the_time_of_its_requests_with_all_its_verdicts(past: Past) -> None:
    answer(past, "t-0", ask(past, "t-0"), 20.0, 500.0)
    answer(past, "t-1", ask(past, "t-1", at=100.0), 110.0, 120.0)
    [it] = await answers_of(past, selection=Selection(since=5.0, until=50.0))
    assert (it.key, len(it.outputs[0].members)) == ("t-0", 2)  # type: ignore[union-attr]
