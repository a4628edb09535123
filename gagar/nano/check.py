"""Runs nano solutions against their tests in a plain child process, to measure a policy where no sandbox is at hand.

This is no sandbox: builtins are few, time and memory are limited, and the code is that of a two-million-parameter model which
has seen nothing but the demonstrations. The pipeline tests in a real one.
"""

import builtins
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from gagar.errors import UnavailableError
from gagar.tasks.task import Task

TIME_LIMIT_S = 1.0
_MEMORY_LIMIT_BYTES = 1 << 30
_ALLOWED_IMPORTS = {"os", "re", "sys", "math", "json"}
_ALLOWED_BUILTINS = (
    *("abs", "all", "any", "bool", "dict", "enumerate", "filter", "float", "int", "len", "list", "map", "max", "min", "range"),
    *("reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip", "AssertionError", "NotImplementedError"),
)


def _import(name: str, *_: Any) -> object:
    """Lets an unused import pass and gives nothing to use."""
    if name not in _ALLOWED_IMPORTS:
        raise ImportError(name)
    return object()


def _namespace() -> dict[str, Any]:
    allowed = {name: getattr(builtins, name) for name in _ALLOWED_BUILTINS}
    return {"__builtins__": {**allowed, "__import__": _import}}


def num_passed(code: str, task: Task) -> int:
    """How many of the task's tests pass with `code` as the solution, in this process."""
    namespace = _namespace()
    try:
        exec(code, namespace)
    except Exception:
        return 0
    passed = 0
    for text in task.tests.values():
        tests = {**_namespace(), "f": namespace.get("f")}
        exec(text.replace("from sol import f\n", ""), tests)
        for test_id in task.fail_to_pass:
            passed += _is_passed(tests[test_id.partition("::")[2]])
    return passed


def _is_passed(test: Any) -> bool:
    try:
        test()
    except Exception:
        return False
    return True


def passes(code: str, task: Task) -> bool:
    """Whether all tests pass with `code` as the solution, in this process."""
    return num_passed(code, task) == len(task.fail_to_pass)


class _OutOfTimeError(BaseException):
    """Not an Exception, so that nothing that tries a candidate takes it for the candidate's."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A solution to try."""

    code: str
    task: Task


def check(attempts: Sequence[Attempt]) -> list[bool]:
    """Whether each attempt passes, tried in a child process; one that is endless or too large fails."""
    done = subprocess.run(
        [sys.executable, "-m", "gagar.nano.check"], input=msgspec.json.encode(attempts), capture_output=True, check=False
    )
    if done.returncode != 0:
        tail = done.stderr.decode(errors="replace")[-500:]
        raise UnavailableError(f"nano check: expected exit code 0, got {done.returncode}; {tail}")
    return msgspec.json.decode(done.stdout, type=list[bool])


def _is_passing_in_time(attempt: Attempt) -> bool:
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
    try:
        return passes(attempt.code, attempt.task)
    except (_OutOfTimeError, MemoryError):
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _on_alarm(*_: object) -> None:
    raise _OutOfTimeError


def main() -> None:
    """The child: attempts as JSON on stdin, verdicts as JSON on stdout."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
    signal.signal(signal.SIGALRM, _on_alarm)
    attempts = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Attempt])
    sys.stdout.buffer.write(msgspec.json.encode([_is_passing_in_time(attempt) for attempt in attempts]))


if __name__ == "__main__":
    main()
