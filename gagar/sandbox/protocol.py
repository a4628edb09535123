"""The sandbox port: a workspace of files, commands and tests run in it, and nothing let out but their results.

Implementation: WarmSandbox, behind the walls of a jail (`bubblewrap`, `landlock`). It tests itself in `open` and fails closed.
Paths in a workspace are relative, normal and POSIX; anything else is refused.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from gagar.errors import BadRecordError, UnavailableError
from gagar.tasks.patches import Tree


class WorkspaceError(BadRecordError):
    """The attempt's own doing, no fault of the infrastructure: its workspace was killed or outgrew its bounds."""


class SlowStartError(UnavailableError):
    """The sandbox was not ready in time: the machine is busy, nothing says that it is wrong."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command in a workspace ended."""

    exit_code: int
    """-1 if it was killed."""
    output: str
    """stdout and stderr in order; head and tail kept within the limit, undecodable bytes replaced."""
    is_timeout: bool = False


class TestRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a test run said, test by test, over the launcher's own descriptor."""

    __test__ = False
    passed: tuple[str, ...]
    """Ids of tests that ran and passed in all phases."""
    failed: tuple[str, ...]
    """Ids reported otherwise."""
    is_complete: bool
    """The report's end was received; without it nothing counts."""
    is_timeout: bool = False
    alarms: tuple[str, ...] = ()
    """Canaries and other layers that say the test process was subverted."""
    output: str = ""
    """Bounded head and tail of what it printed, for people only."""
    duration_s: float = 0.0


class Workspace(Protocol):
    """One attempt's files, behind walls of their own, gone with the context."""

    async def run(self, script: str, timeout_s: float) -> CommandResult:
        """Runs a bash script in the root of the tree; the whole process tree is dead when it returns."""

    async def read_tree(self) -> dict[str, str]:
        """Regular UTF-8 files now in the tree; links are not followed, caches are left out. Raises WorkspaceError if they
        are too many or too large."""

    async def run_tests(self, test_ids: Sequence[str], timeout_s: float, conftests: Sequence[str] = ()) -> TestRun:
        """Runs pytest on `test_ids` (`path::name`, parameters kept whole) with no configuration of the candidate's; of the
        files `conftest.py` those in `conftests` are loaded."""

    async def count_dead_statements(self, base: Tree, result: Tree) -> int:
        """Dead statements that `result` has beyond `base` (see gagar.sandbox.inside.dead_code), by the syntax tree: nothing
        is executed. 0 if they cannot be counted."""


class Sandbox(Protocol):
    """Makes workspaces. Any number at a time; the implementation bounds how many really run."""

    async def open(self) -> None:
        """Starts what is kept warm and tests that isolation holds; raises MachineError that names the way out if the machine
        allows no sandbox, SlowStartError if it is only too busy."""

    def workspace(self, tree: Tree) -> AbstractAsyncContextManager[Workspace]:
        """A fresh workspace that holds `tree`; raises UnavailableError on a fault of the infrastructure."""

    async def close(self) -> None: ...
