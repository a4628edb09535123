"""`gagar show`: what it prints of each kind of thing, as text and as JSON; what it says of one that is not there."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gagar.cli.history.show import show
from gagar.errors import ConfigError
from gagar.records import DeadLetter, Message, encode
from gagar.stream.memory.transport import MemoryLog
from tests.audit_runs import make_run
from tests.builders import make_outcome, make_ref, make_request, make_version
from tests.contract.world import make_trajectory
from tests.logs import append, lay, log_of_commands


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryLog:
    """The log that every command reads."""
    return log_of_commands(monkeypatch, tmp_path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(show, list(arguments))


def printed(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def told(*arguments: str) -> Any:
    """The JSON object in the last line."""
    return json.loads(printed(*arguments, "--json").splitlines()[-1])


def test_a_group_is_told(log: MemoryLog) -> None:
    lay(log, make_run())
    assert told("group", "t-000000")["state"] == "trained at step 1"
    text = printed("group", "t-000000")
    assert "trained at step 1" in text
    assert max(map(len, text.splitlines())) <= 200


def test_an_attempt_is_told_by_group_and_sample_and_by_reference(log: MemoryLog) -> None:
    request = make_request(group_size=1)
    append(log, request)
    ref = append(log, make_trajectory(request, messages=[Message(role="assistant", content="hello")]))
    by_sample, by_reference = told("trajectory", "t-000000/0"), told("trajectory", str(ref))
    assert by_sample == by_reference
    assert by_sample["trajectory"]["messages"] == [{"role": "assistant", "content": "hello"}]
    assert "hello" in printed("trajectory", str(ref))


def test_a_step_has_its_groups_its_version_and_its_evaluation(log: MemoryLog) -> None:
    lay(log, make_run())
    append(log, make_outcome("e-1", kind="evaluated", step=1))
    step = told("step", "1")
    assert [outcome["group_id"] for outcome in step["outcomes"]] == ["t-000000", "t-000001"]
    assert step["versions"][0]["survives"] is True
    assert step["evaluation"]["num_groups"] == 1
    assert "t-000001" in printed("step", "1")


def test_a_version_is_told_by_its_number_or_with_its_run(log: MemoryLog) -> None:
    lay(log, make_run())
    assert told("version", "1") == told("version", "a/1")
    version = told("version", "1")
    assert (version["run_id"], version["step"], version["has_weights"]) == ("a", 1, True)
    assert [outcome["group_id"] for outcome in version["outcomes"]] == ["t-000000", "t-000001"]
    assert "version     1 of run a" in printed("version", "1")


def test_a_task_has_its_groups_and_how_they_ended(log: MemoryLog) -> None:
    lay(log, make_run())
    groups = told("task", "task")["groups"]
    assert len(groups) == 4
    assert {group["outcome"]["kind"] for group in groups if group["outcome"]} == {"trained", "dropped", "evaluated"}
    append(log, make_request("t-9"))
    assert "in flight" in printed("task", "task")


def test_a_run_is_told_with_its_steps(log: MemoryLog) -> None:
    lay(log, make_run())
    run = told("run", "try-1")
    assert (run["run"], run["num_trained"], run["num_requested"]) == ("try-1", 2, 4)
    assert "the planned end" in printed("run", "try-1")


def test_a_dead_letter_is_told_with_what_it_holds(log: MemoryLog) -> None:
    request = make_request()
    append(log, request)
    letter = DeadLetter(
        stage="rollout-worker",
        source=make_ref("rollout-requests", 0),
        error="Traceback\x1b[0m",
        key=b"t-000000",
        value=encode(request),
    )
    ref = append(log, letter)
    name = f"{ref.partition}@{ref.offset}"
    found = told("dead-letter", name)
    assert found["record"]["task_id"] == "task"
    assert found["id"] == name
    assert found == told("dead-letter", str(ref))
    assert "Traceback\\x1b[0m" in printed("dead-letter", name)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("group", "t-9"), r"group 't-9': expected a group that run .* has asked for, got none"),
        (("trajectory", "t-9/0"), r"group 't-9': expected a group"),
        (("trajectory", "t-000000/9"), r"trajectory t-000000/9: expected a sample of the group, of 0, 1, 2, 3, got 9"),
        (("task", "nothing"), r"task 'nothing': expected one of run"),
        (("step", "77"), r"step 77: expected one that run .* has begun, got none"),
        (("version", "77"), r"version 77: expected one of run"),
        (("version", "a/b"), r"version 'a/b': expected a number, or a learner's run id and a number"),
    ],
)
def test_what_is_not_there_is_told_with_what_to_do(log: MemoryLog, arguments: tuple[str, ...], expected: str) -> None:
    lay(log, make_run())
    result = invoke(*arguments)
    assert isinstance(result.exception, ConfigError)
    with pytest.raises(ConfigError, match=expected):
        raise result.exception


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("trajectory", "t-1"), "expected a group and a sample as t-000012/3"),
        (("trajectory", "verdicts[0]@1"), "expected a group and a sample as t-000012/3"),
        (("dead-letter", "1"), "expected partition and offset as 1@17"),
        (("dead-letter", "trajectories[0]@1"), "expected partition and offset as 1@17"),
        (("step", "-1"), "-1"),
    ],
)
def test_ids_of_another_form_are_refused_before_anything_is_read(arguments: tuple[str, ...], expected: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_follow_tells_each_record_on_stderr_and_ends_with_the_group(log: MemoryLog) -> None:
    lay(log, make_run())
    result = invoke("group", "t-000000", "--follow", "--json")
    assert json.loads(result.stdout)["has_ended"] is True
    assert "sample 1: passed" in result.stderr
    assert "trained at step 1" in result.stderr


def test_follow_of_a_step_ends_with_its_version(log: MemoryLog) -> None:
    append(log, make_version(0))
    append(log, make_version(1))
    result = invoke("step", "1", "--follow", "--json")
    assert json.loads(result.stdout)["has_ended"] is True
    assert result.stderr.count("of run a") == 2


def test_a_group_becomes_files(log: MemoryLog, tmp_path: Path) -> None:
    request = make_request(group_size=1)
    append(log, request)
    append(log, make_trajectory(request, patch="--- a/x\n"))
    result = invoke("group", "t-000000", "--workspace", str(tmp_path / "left"))
    assert result.exit_code == 0, result.exception
    assert (tmp_path / "left/candidates/0/patch.diff").read_text() == "--- a/x\n"
    assert "the task is not among [tasks]" in result.stderr


def test_a_directory_with_something_in_it_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    result = invoke("group", "t-000000", "--workspace", str(tmp_path))
    with pytest.raises(ConfigError, match="expected a directory that is new or empty, got another; name another one"):
        raise result.exception or AssertionError(result.output)
