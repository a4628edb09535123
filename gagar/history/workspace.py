"""A group as files: the task, its base tree, its tests, and of each attempt patch, transcript and verdict.

In: a `GroupHistory`, the task if this machine has it, a directory. Out: that directory:

    task.md, task.json           the statement; ids of the tests, scope
    base/, tests/                the task's files; the protected ones, laid over the tree only when it is tested
    candidates/<sample index>/   patch.diff (`git apply` takes it in base/), transcript.md, verdict.json
    group.json                   the whole history, without transcripts

Everything that an attempt has brought is hostile. None of its text becomes a path: names are ours, and numbers. Paths of the
task are checked again. The directory has to be new or empty: nothing in it leads elsewhere, and no file is written over.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gagar.errors import BadRecordError, ConfigError
from gagar.history.group import AttemptHistory, GroupHistory
from gagar.history.group_view import as_object
from gagar.history.plain import plain, printable
from gagar.tasks.patches import check_path
from gagar.tasks.task import Task

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def check_directory(directory: Path) -> None:
    """Raises ConfigError unless the directory is not there yet, or empty."""
    if os.path.lexists(directory) and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"--workspace {directory}: expected a directory that is new or empty, got another; name another one")


def write_workspace(directory: Path, history: GroupHistory, task: Task | None, *, only: AttemptHistory | None = None) -> None:
    """Writes the group, or one attempt of it. Raises ConfigError, BadRecordError for a path of the task that leads out."""
    check_directory(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if task is not None:
        _write_task(directory, task)
    for attempt in [only] if only is not None else history.attempts:
        _write_attempt(directory / "candidates" / f"{attempt.sample_index:d}", attempt)
    _write(directory / "group.json", _json(as_object(history)))


def _write_task(directory: Path, task: Task) -> None:
    facts = {"task_id": task.task_id, "fail_to_pass": task.fail_to_pass, "pass_to_pass": task.pass_to_pass, "scope": task.scope}
    _write(directory / "task.md", task.statement)
    _write(directory / "task.json", _json(facts))
    _write_tree(directory / "base", task.tree)
    _write_tree(directory / "tests", task.tests)


def _write_tree(directory: Path, tree: Mapping[str, str]) -> None:
    for path, text in tree.items():
        check_path(path)
        target = directory.joinpath(*path.split("/"))
        if not target.is_relative_to(directory):
            raise BadRecordError(f"path {path[:200]!r}: expected one below {directory}, got another")
        _write(target, text)


def _write_attempt(directory: Path, attempt: AttemptHistory) -> None:
    if attempt.trajectory is not None:
        trajectory = attempt.trajectory.record
        _write(directory / "patch.diff", trajectory.patch)
        messages = (f"## {number} {message.role}\n\n{message.content}\n" for number, message in enumerate(trajectory.messages))
        _write(directory / "transcript.md", printable("\n".join(messages)))
    facts = {"verdict": attempt.judged, "grade": attempt.grade, "advantage": attempt.advantage}
    _write(directory / "verdict.json", _json({name: plain(record) for name, record in facts.items()}))


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, NEW, 0o644), "wb") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
