"""Task files: a fault names file and line, and no task gets in twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from gagar.errors import ConfigError, UnavailableError
from gagar.tasks.jsonl import JsonlTasks
from gagar.tasks.task import Task


def make_line(task_id: str = "a", **changes: Any) -> str:
    task = {
        "task_id": task_id,
        "statement": "Add.",
        "tree": {"x.py": "def f(): ...\n"},
        "tests": {"test_x.py": "def test_f(): ...\n"},
        "fail_to_pass": ["test_x.py::test_f"],
        **changes,
    }
    return json.dumps(task)


def write(directory: Path, *lines: str) -> Path:
    path = directory / "tasks.jsonl"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_tasks_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    tasks = JsonlTasks(write(tmp_path, make_line("b"), make_line("a"), make_line("c"))).all()
    assert [task.task_id for task in tasks] == ["b", "a", "c"]
    assert isinstance(tasks[0], Task)


def test_blank_lines_are_passed_over_but_counted(tmp_path: Path) -> None:
    path = write(tmp_path, make_line("a"), "", "   ", "{")
    with pytest.raises(ConfigError, match=r"tasks.jsonl:4: expected a task as JSON, got .*; mend or remove the line"):
        JsonlTasks(path)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '"task"',
        make_line(statement=3),
        make_line(tree={"x.py": 1}),
        make_line(colour="red"),
        make_line().replace('"statement"', '"wording"'),
        make_line()[:-9],
    ],
)
def test_a_broken_line_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"tasks.jsonl:2: expected a task as JSON, got"):
        JsonlTasks(write(tmp_path, make_line("first"), line))


def test_bytes_that_are_no_text_are_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(make_line().encode() + b'\n{"task_id": "\xff\xfe"}\n')
    with pytest.raises(ConfigError, match=r"tasks.jsonl:2: expected a task as JSON"):
        JsonlTasks(path)


def test_a_doubled_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tasks.jsonl:3: expected a new task_id, got 'a' again; rename or remove it"):
        JsonlTasks(write(tmp_path, make_line("a"), make_line("b"), make_line("a")))


def test_a_task_that_no_test_decides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tasks.jsonl:1: expected at least one id in fail_to_pass, got none"):
        JsonlTasks(write(tmp_path, make_line(fail_to_pass=[])))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_id": ""}, "expected a task_id, got none"),
        ({"tree": {"/etc/passwd": ""}}, "path '/etc/passwd': expected a relative, normal path"),
        ({"tree": {"a/../../b": ""}}, "path 'a/../../b': expected a relative, normal path"),
        ({"tests": {"../test_x.py": ""}}, "path '../test_x.py': expected a relative, normal path"),
        ({"scope": ["a//b"]}, "path 'a//b': expected a relative, normal path"),
        ({"fail_to_pass": ["test_y.py::test_f"]}, "expected test ids `path::name` of files in tests or tree, got 'test_y.py::"),
        ({"fail_to_pass": ["test_x.py"]}, "expected test ids `path::name` of files in tests or tree, got 'test_x.py'"),
        ({"pass_to_pass": ["test_x.py::test_f"]}, r"expected each test id once, got \['test_x.py::test_f'\]"),
    ],
)
def test_a_task_that_cannot_be_tried_is_refused_with_its_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"tasks.jsonl:2: {message}.*; mend or remove the line$"):
        JsonlTasks(write(tmp_path, make_line("first"), make_line(**changes)))


@pytest.mark.parametrize("lines", [(), ("", " ")])
def test_an_empty_file_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"task file .*: expected at least one task, got none"):
        JsonlTasks(write(tmp_path, *lines))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task file .*none.jsonl: expected a readable JSON Lines file, got No such file"):
        JsonlTasks(tmp_path / "none.jsonl")


def test_expected_tests_are_both_lists(tmp_path: Path) -> None:
    (task,) = JsonlTasks(write(tmp_path, make_line(pass_to_pass=["test_x.py::test_g"]))).all()
    assert task.expected_tests == ["test_x.py::test_f", "test_x.py::test_g"]


def test_a_task_is_found_by_its_id_and_read_from_its_line(tmp_path: Path) -> None:
    tasks = JsonlTasks(write(tmp_path, make_line("first"), "", make_line("\u00e9", statement="Add \u00e9."), make_line("last")))
    assert list(tasks.ids) == ["first", "\u00e9", "last"]
    found = tasks.find("\u00e9")
    assert found is not None
    assert found.statement == "Add \u00e9."
    assert tasks.find("none") is None


def test_a_file_that_is_not_what_it_was_is_told_and_no_record_is_lost_for_it(tmp_path: Path) -> None:
    path = write(tmp_path, make_line("a"), make_line("b"))
    tasks = JsonlTasks(path)
    write(tmp_path, make_line("b"), make_line("a"))
    with pytest.raises(UnavailableError, match=r"expected it as it was at the start, got another$"):
        tasks.find("a")
    path.unlink()
    with pytest.raises(UnavailableError, match=r"tasks.jsonl: expected to read it, got No such file"):
        tasks.find("a")
