"""The plain child process that tries nano solutions: verdicts, limits, and few builtins."""

import pytest

from gagar.errors import UnavailableError
from gagar.nano.check import Attempt, check, num_passed, passes
from gagar.tasks.task import Task

TASK = Task(
    task_id="t",
    statement="sol.py: f(n) returns n plus 2",
    tree={"sol.py": "def f(n):\n    raise NotImplementedError\n"},
    tests={
        "test_sol.py": "from sol import f\n\n\ndef test_1():\n    assert f(1) == 3\n\n\ndef test_2():\n    assert f(2) == 4\n"
    },
    fail_to_pass=["test_sol.py::test_1", "test_sol.py::test_2"],
)


def function(body: str) -> str:
    return f"def f(n):\n    {body}\n"


def test_a_solution_passes_and_a_partial_one_is_counted() -> None:
    assert passes(function("return n + 2"), TASK)
    assert not passes(function("return 3"), TASK)
    assert num_passed(function("return 3"), TASK) == 1
    assert num_passed(function("return 0"), TASK) == 0


@pytest.mark.parametrize(
    "code", ["", "def f(n) return", "1 / 0", "f = 3", "def g(n):\n    return n + 2\n", function("import os\n    os.x")]
)
def test_code_that_is_no_solution_fails(code: str) -> None:
    assert not passes(code, TASK)


def test_an_unused_import_is_let_pass_and_gives_nothing_to_use() -> None:
    assert passes(function("import os\n    return n + 2"), TASK)
    assert not passes(function("import os\n    os.getcwd()\n    return n + 2"), TASK)
    assert not passes(function("import socket\n    return n + 2"), TASK)


def test_files_cannot_be_opened() -> None:
    assert not passes(function("open('x', 'w')\n    return n + 2"), TASK)


def test_a_child_process_gives_a_verdict_for_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = ["return n + 2", "return n", "while True: pass", "return [0] * 10 ** 10", "return n + 2"]
    assert check([Attempt(code=function(body), task=TASK) for body in bodies]) == [True, False, False, False, True]


def test_a_child_that_dies_is_an_error_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(UnavailableError, match="nano check: expected exit code 0, got 1"):
        check([])
