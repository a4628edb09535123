"""`gagar dead-letters`: the list, one letter, a retry and its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gagar.cli.history.dead_letters import dead_letters
from gagar.errors import BadRecordError
from gagar.records import DeadLetter, LogRef, encode
from gagar.stream.memory.transport import MemoryLog
from tests.builders import make_request
from tests.contract.world import make_trajectory
from tests.logs import append, log_of_commands


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryLog:
    return log_of_commands(monkeypatch, tmp_path)


def rejected(log: MemoryLog, group_id: str = "t-000000", stage: str = "verifier") -> str:
    """The id of a dead letter, of a trajectory that lies in the log."""
    trajectory = make_trajectory(make_request(group_id, group_size=1))
    source: LogRef = append(log, trajectory)
    letter = DeadLetter(
        stage=stage, source=source, error=f"{source}: no task\x1b[2J", key=group_id.encode(), value=encode(trajectory)
    )
    ref = append(log, letter)
    return f"{ref.partition}@{ref.offset}"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(dead_letters, list(arguments))


def told(*arguments: str) -> Any:
    result = invoke(*arguments, "--json")
    assert result.exception is None, (result.exception, result.output)
    return json.loads(result.stdout.splitlines()[-1])


def test_the_list_names_each_letter_once_and_what_became_of_it(log: MemoryLog) -> None:
    first, second = rejected(log, "t-1"), rejected(log, "t-2", "gatherer")
    assert invoke("retry", first).exit_code == 0
    by_id = {line["id"]: line for line in told("list")["dead_letters"]}
    assert by_id.keys() == {first, second}
    assert by_id[first]["retried_as"].startswith("trajectories[")
    assert by_id[second]["retried_as"] is None
    assert by_id[second]["key"] == "t-2"
    text = invoke("list").output
    assert "no task\\x1b[2J" in text
    assert [line["id"] for line in told("list", "--stage", "verifier")["dead_letters"]] == [first]


def test_one_letter_is_shown_whole(log: MemoryLog) -> None:
    name = rejected(log)
    assert told("show", name)["record"]["group_id"] == "t-000000"
    assert "no task\\x1b[2J" in invoke("show", name).output


def test_a_retry_that_is_refused_exits_with_1_and_says_why(log: MemoryLog) -> None:
    name = rejected(log)
    done = invoke("retry", name, "--json")
    assert (done.exit_code, json.loads(done.stdout)["letters"][0]["refusal"]) == (0, "")
    again = invoke("retry", name)
    assert again.exit_code == 1
    assert "was retried already, as trajectories[" in again.output


def test_a_letter_that_is_not_there_is_told(log: MemoryLog) -> None:
    name = rejected(log)
    partition = name.partition("@")[0]
    assert invoke("retry", f"{partition}@77").exit_code == 1
    with pytest.raises(BadRecordError, match="expected a dead letter, got none"):
        raise invoke("show", f"{partition}@77").exception or AssertionError


def test_an_id_of_another_form_and_a_stage_that_is_none_are_refused_before_anything_is_read() -> None:
    assert "expected partition and offset as 1@17" in invoke("retry", "seventeen").stderr
    assert invoke("list", "--stage", "nobody").exit_code == 2
    assert invoke("retry").exit_code == 2
