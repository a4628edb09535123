"""The verifier around a fake sandbox."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.verifier import Config, VerifyTrajectories, judge, lay_over
from gagar.config import convert
from gagar.errors import BadRecordError, ConfigError, UnavailableError
from gagar.records import AttemptFacts, LogRef, PatchMeasures, Trajectory, Verdict
from gagar.sandbox.protocol import CommandResult, TestRun, Workspace, WorkspaceError
from gagar.stream.handlers import Delivery, References
from gagar.tasks.kinds import Tasks
from gagar.tasks.patches import Tree, make_patch
from gagar.tasks.task import Task
from tests.runs import make_run
from topology.resources import Resources

BASE = {"sol.py": "def f():\n    raise NotImplementedError\n", "util.py": "u = 1\n"}
SOLVED = BASE | {"sol.py": "def f():\n    return 1\n"}
IDS = ["tests/test_sol.py::test_a", "tests/test_sol.py::test_b"]
TASK = Task(
    task_id="t1",
    statement="",
    tree=BASE,
    tests={"tests/test_sol.py": "protected", "tests/conftest.py": "own"},
    fail_to_pass=IDS[:1],
    pass_to_pass=IDS[1:],
    scope=["sol.py"],
)
PASSED = TestRun(passed=tuple(IDS), failed=(), is_complete=True)


class FakeSandbox:
    """Answers every test run alike and keeps what it was given."""

    def __init__(self, run: TestRun = PASSED, error: Exception | None = None) -> None:
        self.test_run = run
        self.error = error
        self.trees: list[dict[str, str]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    def workspace(self, tree: Tree) -> AbstractAsyncContextManager[Workspace]:
        return self._workspace(tree)

    @asynccontextmanager
    async def _workspace(self, tree: Tree) -> AsyncIterator[Workspace]:
        assert self.is_open
        if self.error:
            raise self.error
        self.trees.append(dict(tree))
        yield self

    async def run(self, script: str, timeout_s: float) -> CommandResult:
        raise AssertionError("the verifier runs no commands")

    async def read_tree(self) -> dict[str, str]:
        raise AssertionError("the verifier reads no tree")

    async def run_tests(self, test_ids: Sequence[str], timeout_s: float, conftests: Sequence[str] = ()) -> TestRun:
        self.calls.append(("test", list(test_ids), timeout_s, list(conftests)))
        return self.test_run

    async def count_dead_statements(self, base: Tree, result: Tree) -> int:
        self.calls.append(("count", dict(base), dict(result)))
        return 3


class NoReferences:
    async def read(self, refs: Sequence[LogRef], record_type: type[Any], /) -> list[Any]:
        raise AssertionError("the verifier reads nothing by reference")


def make_tasks(folder: Path) -> Tasks:
    (folder / "train.jsonl").write_bytes(msgspec.json.encode(TASK))
    (folder / "heldout.jsonl").write_bytes(msgspec.json.encode(msgspec.structs.replace(TASK, task_id="t2")))
    return Resources(make_run(folder)).tasks


def make_trajectory(**changes: Any) -> Trajectory:
    trajectory = Trajectory(
        group_id="g1",
        sample_index=2,
        attempt=AttemptFacts(
            request=LogRef(topic="rollout-requests", partition=0, offset=1),
            tokens=LogRef(topic="trajectory-tokens", partition=0, offset=2),
            status="completed",
            num_turns=1,
            num_prompt_tokens=19,
            num_sampled_tokens=42,
            policy_version_min=3,
            policy_version_max=4,
        ),
        task_id="t1",
        purpose="training",
        patch=make_patch(BASE, SOLVED),
    )
    facts = {name: changes.pop(name) for name in AttemptFacts.__struct_fields__ if name in changes}
    attempt = msgspec.structs.replace(trajectory.attempt, **facts)
    return msgspec.structs.replace(trajectory, attempt=attempt, **changes)


REF = LogRef(topic="trajectories", partition=0, offset=9)


async def verify(folder: Path, sandbox: FakeSandbox, **changes: Any) -> Verdict:
    handler = VerifyTrajectories(make_tasks(folder), sandbox, 7.0)
    references: References = NoReferences()
    await handler.open(references)
    try:
        delivery = Delivery(ref=REF, key="g1", record=make_trajectory(**changes), at=0.0)
        (verdict,) = await handler.handle(delivery)
    finally:
        await handler.close()
    assert not sandbox.is_open
    return verdict


async def test_a_passing_patch_passes_with_all_its_facts(tmp_path: Path) -> None:
    sandbox = FakeSandbox()
    verdict = await verify(tmp_path, sandbox)
    assert verdict == Verdict(
        group_id="g1",
        sample_index=2,
        attempt=AttemptFacts(
            request=LogRef(topic="rollout-requests", partition=0, offset=1),
            tokens=LogRef(topic="trajectory-tokens", partition=0, offset=2),
            num_turns=1,
            num_prompt_tokens=19,
            num_sampled_tokens=42,
            policy_version_min=3,
            policy_version_max=4,
            status="completed",
        ),
        task_id="t1",
        purpose="training",
        trajectory=REF,
        status="passed",
        num_tests_expected=2,
        num_tests_passed=2,
        measures=PatchMeasures(num_added_lines=1, num_removed_lines=1, num_files=1, num_dead_statements=3),
        patch_digest=verdict.patch_digest,
        duration_s=verdict.duration_s,
    )
    assert len(verdict.patch_digest) == 64
    assert sandbox.calls[0] == ("test", IDS, 7.0, ["tests/conftest.py"])
    assert sandbox.calls[1] == ("count", {"sol.py": BASE["sol.py"]}, {"sol.py": SOLVED["sol.py"]})


async def test_protected_tests_are_laid_over_the_patched_tree(tmp_path: Path) -> None:
    edited = SOLVED | {"tests/test_sol.py": "def test_a(): pass\n", "tests/test_more.py": "more\n"}
    sandbox = FakeSandbox()
    verdict = await verify(tmp_path, sandbox, patch=make_patch(BASE, edited), task_id="t2")
    assert sandbox.trees == [edited | TASK.tests]
    assert verdict.measures.num_files_out_of_scope == 2


async def test_a_file_in_the_way_of_the_tests_is_left_out(tmp_path: Path) -> None:
    sandbox = FakeSandbox()
    await verify(tmp_path, sandbox, patch=make_patch(BASE, SOLVED | {"tests": "a file"}))
    assert sandbox.trees == [SOLVED | TASK.tests]
    assert lay_over({"a/b/c": "1", "a/b2": "2"}, {"a/b": "3"}) == {"a/b": "3", "a/b2": "2"}


async def test_an_infrastructure_failure_is_invalid_and_not_tested(tmp_path: Path) -> None:
    sandbox = FakeSandbox()
    verdict = await verify(tmp_path, sandbox, infrastructure=True, failure="engine down\ntraceback", status="failed")
    assert (verdict.status, verdict.reason, sandbox.trees) == ("invalid", "engine down", [])


async def test_an_empty_patch_fails_without_a_sandbox(tmp_path: Path) -> None:
    sandbox = FakeSandbox()
    verdict = await verify(tmp_path, sandbox, patch="", status="timeout")
    assert (verdict.status, verdict.attempt.status, sandbox.trees) == ("failed", "timeout", [])
    assert verdict.num_tests_expected == 2


async def test_a_truncated_attempt_is_tested_all_the_same(tmp_path: Path) -> None:
    assert (await verify(tmp_path, FakeSandbox(), status="truncated")).status == "passed"


@pytest.mark.parametrize("patch", ["nonsense", make_patch({"sol.py": "other\n"}, {"sol.py": "x\n"})])
async def test_a_patch_that_does_not_apply_fails(tmp_path: Path, patch: str) -> None:
    verdict = await verify(tmp_path, FakeSandbox(), patch=patch)
    assert (verdict.status, verdict.reason[:5]) == ("failed", "patch")


async def test_a_large_patch_is_handled_off_the_loop(tmp_path: Path) -> None:
    patch = make_patch(BASE, SOLVED | {"big.txt": "x\n" * 50_000})
    assert (await verify(tmp_path, FakeSandbox(), patch=patch)).measures.num_added_lines == 50_001


async def test_a_workspace_that_fails_is_the_attempts_doing(tmp_path: Path) -> None:
    verdict = await verify(tmp_path, FakeSandbox(error=WorkspaceError("workspace: expected less")))
    assert (verdict.status, verdict.reason) == ("failed", "workspace: expected less")


async def test_a_sandbox_that_fails_is_nobodys(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="sandbox: down"):
        await verify(tmp_path, FakeSandbox(error=UnavailableError("sandbox: down")))


async def test_an_unknown_task_is_a_bad_record(tmp_path: Path) -> None:
    with pytest.raises(BadRecordError, match=r"trajectories\[0\]@9: expected a task of \[tasks\], got 't9'"):
        await verify(tmp_path, FakeSandbox(), task_id="t9")


def test_a_missing_task_file_ends_it_at_the_start(tmp_path: Path) -> None:
    make_tasks(tmp_path)
    (tmp_path / "heldout.jsonl").unlink()
    with pytest.raises(ConfigError, match="expected a readable JSON Lines file"):
        assert Resources(make_run(tmp_path)).tasks


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (TestRun(passed=tuple(IDS), failed=(), is_complete=False), "the test report has no end"),
        (TestRun(passed=tuple(IDS), failed=(), is_complete=True, alarms=("odd",)), "alarm: odd"),
        (TestRun(passed=(), failed=(), is_complete=False, is_timeout=True), "time-out of the tests"),
        (TestRun(passed=tuple(IDS[:1]), failed=(), is_complete=True), f"1 of 2 tests did not pass, first {IDS[1]}"),
        (TestRun(passed=tuple(IDS), failed=(IDS[0],), is_complete=True), f"1 of 2 tests did not pass, first {IDS[0]}"),
    ],
)
def test_anything_but_a_clean_report_fails(run: TestRun, reason: str) -> None:
    assert judge(IDS, run) == ("failed", reason)


def test_a_clean_report_passes() -> None:
    assert judge(IDS, PASSED) == ("passed", "")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({"concurrency": 0}, "verifier.concurrency: expected 1 to 1024, got 0"),
        ({"test_timeout_s": 0.0}, "verifier.test_timeout_s: expected more than 0"),
        ({"sandbox": {"open_files": 10}}, "verifier.sandbox.open_files: expected at least 256, got 10"),
        ({"sandbox": {"memory_bytes": 1}}, "verifier.sandbox.memory_bytes: expected at least 256 MiB"),
        ({"sandbox": {"processes": 0}}, "verifier.sandbox.processes: expected more than 0, got 0"),
        ({"sandbox": "none"}, r"verifier.sandbox: expected a table, got 'none'; write it as \[verifier.sandbox\]"),
        (
            {"sandbox": {"kind": "jail"}},
            "verifier.sandbox.kind: expected one of auto, bubblewrap, landlock, or package.module:Table, got 'jail'",
        ),
    ],
)
def test_the_table_is_checked(raw: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        convert("verifier", raw, Config)
