"""Verifier: trajectories in, what the tests say of them out.

Input   trajectories  one Trajectory
Output  verdicts      one Verdict, same key
State   none

The tree that is tested is the task's base with the patch applied and the protected tests laid over it, in a sandbox of
its own. An attempt that ended on account of the infrastructure is `invalid` without a test; a patch that does not apply,
and none, is `failed`.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from gagar.config import Seconds, WorkTable
from gagar.errors import BadRecordError
from gagar.records import PatchMeasures, Trajectory, Verdict, VerdictStatus
from gagar.sandbox.kinds import Auto, SandboxKinds
from gagar.sandbox.protocol import Sandbox, TestRun
from gagar.stream.handlers import Delivery, Effect, References
from gagar.tasks.kinds import Tasks
from gagar.tasks.patches import apply_patch, changed_files, folders_above, make_patch
from gagar.tasks.task import Task
from gagar.verification.measures import measure_patch, patch_digest
from gagar.verification.verdicts import untested
from topology.resources import Resources

MAX_REASON_CHARS = 300
INLINE_CHARS = 64 << 10
"""Patches up to this are applied and compared on the event loop; that takes a millisecond or two."""


class Config(WorkTable, frozen=True, kw_only=True):
    """[verifier] in the run file."""

    sandbox: SandboxKinds = Auto()
    """Sandbox that the tests run in."""
    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 2
    """Workspaces that run at the same time; about the number of cores."""
    test_timeout_s: Seconds = 60.0
    """Seconds that all tests of one attempt may take."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a patch makes of a task's tree."""

    result: dict[str, str]
    """The tree with the patch applied."""
    measures: PatchMeasures
    """Dead statements are not counted yet."""
    digest: str
    """`patch_digest` of the change."""


class VerifyTrajectories(Effect):
    """Tests each trajectory's patch in a Sandbox."""

    def __init__(self, tasks: Tasks, sandbox: Sandbox, timeout_s: float) -> None:
        """`timeout_s`: of all tests of an attempt."""
        self._tasks = tasks
        self._sandbox = sandbox
        self._timeout_s = timeout_s

    async def open(self, references: References) -> None:
        await self._sandbox.open()

    async def handle(self, delivery: Delivery[Trajectory]) -> Sequence[Verdict]:
        trajectory = delivery.record
        task = await asyncio.to_thread(self._tasks.find, trajectory.task_id)
        if task is None:
            raise BadRecordError(f"trajectory {delivery.ref}: expected a task of [tasks], got {trajectory.task_id!r}")
        verdict = untested(delivery, len(task.expected_tests))
        if trajectory.infrastructure:
            return [_decided(verdict, "invalid", trajectory.failure or "the infrastructure failed")]
        if not trajectory.patch:
            return [_decided(verdict, "failed", f"empty patch of an attempt that was {trajectory.attempt.status}")]
        try:
            change = await _measured_change(task, trajectory.patch)
            return [await self._test(verdict, task, change)]
        except BadRecordError as error:  # of the patch or of the workspace: the attempt's own doing
            return [_decided(verdict, "failed", str(error))]

    async def _test(self, verdict: Verdict, task: Task, change: Change) -> Verdict:
        conftests = [path for path in task.tests if path.rpartition("/")[2] == "conftest.py"]
        paths = changed_files(task.tree, change.result)
        before = {path: task.tree[path] for path in paths if path in task.tree}
        after = {path: change.result[path] for path in paths if path in change.result}
        async with self._sandbox.workspace(lay_over(change.result, task.tests)) as workspace:
            started = time.monotonic()
            run = await workspace.run_tests(task.expected_tests, self._timeout_s, conftests)
            num_dead_statements = await workspace.count_dead_statements(before, after)
            duration_s = time.monotonic() - started
        status, reason = judge(task.expected_tests, run)
        return msgspec.structs.replace(
            _decided(verdict, status, reason),
            num_tests_passed=len(set(run.passed)),
            measures=msgspec.structs.replace(change.measures, num_dead_statements=num_dead_statements),
            patch_digest=change.digest,
            duration_s=duration_s,
        )

    async def close(self) -> None:
        await self._sandbox.close()


def judge(expected: Sequence[str], run: TestRun) -> tuple[VerdictStatus, str]:
    """Passed only if the report is complete, nothing raised an alarm and every expected test is in it, once, and passed."""
    missing = [name for name in expected if name not in set(run.passed)]
    if run.alarms:
        return "failed", f"alarm: {run.alarms[0]}"
    if run.is_timeout:
        return "failed", "time-out of the tests"
    if not run.is_complete:
        return "failed", "the test report has no end"
    if missing or run.failed:
        names = missing or list(run.failed)
        return "failed", f"{len(names)} of {len(expected)} tests did not pass, first {names[0]}"
    return "passed", ""


def lay_over(tree: Mapping[str, str], protected: Mapping[str, str]) -> dict[str, str]:
    """The tree with the protected files in their places; what stands in their way (a file where a folder must be, or the
    reverse) is left out."""
    folders = {folder for path in protected for folder in folders_above(path)}
    kept = {
        path: text
        for path, text in tree.items()
        if path not in folders and not any(folder in protected for folder in folders_above(path))
    }
    return kept | dict(protected)


async def _measured_change(task: Task, patch: str) -> Change:
    if len(patch) <= INLINE_CHARS:
        return _change(task, patch)
    return await asyncio.to_thread(_change, task, patch)


def _change(task: Task, patch: str) -> Change:
    result = apply_patch(task.tree, patch)
    return Change(
        result=result,
        measures=measure_patch(task.tree, result, task.scope),
        digest=patch_digest(make_patch(task.tree, result)),
    )


def _decided(verdict: Verdict, status: VerdictStatus, reason: str) -> Verdict:
    first_line = reason.partition("\n")[0][:MAX_REASON_CHARS]
    return msgspec.structs.replace(verdict, status=status, reason=first_line)


def make(resources: Resources, config: Config) -> Effect:
    """The stage's handler; raises ConfigError if the tasks cannot be read."""
    return VerifyTrajectories(resources.tasks, config.sandbox.make(config.concurrency), config.test_timeout_s)
