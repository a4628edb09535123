"""A task: a repository, a problem statement, tests; and a set of them, which answers ids and one task at a time."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec

from gagar.errors import BadRecordError
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


class TaskSet(Protocol):
    """Tasks by id. It holds an index in memory, not the tasks."""

    @property
    def ids(self) -> Sequence[str]:
        """Every task_id, in the order of the source."""

    def find(self, task_id: str, /) -> Task | None:
        """The task of that id, or none. It reads a file, so an event loop calls it in a thread."""


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
