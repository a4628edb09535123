"""A task: a repository, a problem statement, tests. Task sets are JSON Lines files, one task a line.

A broken line is a ConfigError that names file and line, before any stage starts.
"""

from collections import Counter
from pathlib import Path

import msgspec

from gagar.errors import BadRecordError, ConfigError
from gagar.tasks.patches import check_path


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing to do in a repository."""

    task_id: str
    """Unique in its file, and in no other file of the run."""
    statement: str
    """What the agent is asked, in words."""
    tree: dict[str, str]
    """Text files at the base commit, by relative POSIX path; the protected tests are not among them."""
    tests: dict[str, str]
    """Protected files, laid over the tree only when it is tested."""
    fail_to_pass: list[str]
    """Test ids (`path::name`) that fail at the base and must pass."""
    pass_to_pass: list[str] = []
    """Test ids that pass at the base and must still pass."""
    scope: list[str] = []
    """Paths that a solution has reason to touch; empty: any."""
    reference_patch: str = ""
    """A known solution; never shown to the agent."""

    @property
    def expected_tests(self) -> list[str]:
        return [*self.fail_to_pass, *self.pass_to_pass]


def load_tasks(path: Path) -> list[Task]:
    """All tasks of a file, in order; raises ConfigError on a missing file, a broken line or a doubled task_id."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"task file {path}: expected a readable JSON Lines file, got {error.strerror}") from error
    decoder = msgspec.json.Decoder(Task)
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}:{number}: expected a task as JSON, got {error}; mend or remove the line") from error
        if task.task_id in tasks:
            raise ConfigError(f"{path}:{number}: expected a new task_id, got {task.task_id!r} again; rename or remove it")
        try:
            check_task(task)
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {error}; mend or remove the line") from error
        tasks[task.task_id] = task
    if not tasks:
        raise ConfigError(f"task file {path}: expected at least one task, got none")
    return list(tasks.values())


def check_task(task: Task) -> None:
    """Raises ValueError unless a task can be tried: every path is inside the repository, and tests decide it that are there."""
    _require(task.task_id, "a task_id", "none")
    _require(task.fail_to_pass, "at least one id in fail_to_pass", "none")
    for path in [*task.tree, *task.tests, *task.scope]:
        try:
            check_path(path)
        except BadRecordError as error:
            raise ValueError(str(error)) from error
    twice = [name for name, times in Counter(task.expected_tests).items() if times > 1]
    _require(not twice, "each test id once", repr(twice[:1]))
    for name in task.expected_tests:
        file, _, test = name.partition("::")
        _require(
            test and (file in task.tests or file in task.tree), "test ids `path::name` of files in tests or tree", repr(name)
        )


def _require(is_ok: object, expected: str, got: str) -> None:
    if not is_ok:
        raise ValueError(f"expected {expected}, got {got}")
