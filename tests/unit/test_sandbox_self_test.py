"""The self-test: it fails closed on a wall that a jail promises, and passes over one that it is known to lack."""

import asyncio
import logging
import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gagar.errors import MachineError, UnavailableError
from gagar.sandbox import jails, warm_sandbox
from gagar.sandbox.kinds import Auto
from gagar.sandbox.protocol import CommandResult, SlowStartError, TestRun
from gagar.sandbox.self_test import check_isolation
from gagar.sandbox.warm_server import Cell, Launch

GOOD = TestRun(passed=("test_probe.py::test_true",), failed=("test_probe.py::test_false",), is_complete=True)


class FakeWorkspace:
    """Answers what it was told to."""

    def __init__(self, output: str, tests: TestRun, is_timeout: bool) -> None:
        self.result = CommandResult(exit_code=0, output=output, is_timeout=is_timeout)
        self.tests = tests

    async def run(self, script: str, timeout_s: float) -> CommandResult:
        return self.result

    async def run_tests(self, *arguments: object) -> TestRun:
        return self.tests


class FakeSandbox:
    """A sandbox of one FakeWorkspace."""

    def __init__(self, output: str, tests: TestRun = GOOD, *, is_timeout: bool = False) -> None:
        self.inner = FakeWorkspace(output, tests, is_timeout)

    @asynccontextmanager
    async def workspace(self, tree: object) -> AsyncIterator[FakeWorkspace]:
        yield self.inner


async def check(sandbox: Any, *missing: str) -> None:
    await check_isolation(sandbox, missing, 1.0)


async def test_a_wall_that_is_known_to_be_missing_is_no_failure() -> None:
    await check(FakeSandbox("walls-tried\n"))
    await check(FakeSandbox("WALL file names: x is visible\nwalls-tried\n"), "file names")


@pytest.mark.parametrize(
    ("sandbox", "match"),
    [
        (FakeSandbox("WALL file names: x is visible\nwalls-tried\n"), "got WALL file names: x is visible"),
        (FakeSandbox("WALL network: a port\nWALL disk: y\nwalls-tried\n"), "got WALL network: a port$"),
        (FakeSandbox("no python\n"), "no python"),
        (FakeSandbox("WALL network: a port\n", is_timeout=True), "WALL network"),
        (
            FakeSandbox("walls-tried\n", TestRun(passed=(), failed=(), is_complete=True)),
            "expected one passed and one failed test",
        ),
    ],
)
async def test_any_other_fails_closed(sandbox: FakeSandbox, match: str) -> None:
    with pytest.raises(UnavailableError, match=match):
        await check(sandbox, "disk")


async def test_a_busy_machine_is_no_broken_wall() -> None:
    with pytest.raises(SlowStartError, match="got none yet"):
        await check(FakeSandbox("", is_timeout=True))


ON_HOST = """
import sys
from gagar.sandbox.inside.walls import probe
probe.READ_ONLY = ()
probe.main()
"""


class OnHost(FakeWorkspace):
    """Tries the walls where there are none."""

    async def run(self, script: str, timeout_s: float) -> CommandResult:
        targets = shlex.split(script)[3]
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", ON_HOST, targets, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        self.result = CommandResult(exit_code=0, output=output.decode())
        return self.result


async def test_a_process_without_walls_breaks_them_all() -> None:
    sandbox = FakeSandbox("")
    sandbox.inner = OnHost("", GOOD, False)
    with pytest.raises(UnavailableError, match="WALL network"):
        await check(sandbox)
    lines = sandbox.inner.result.output.splitlines()
    walls = {line.partition(":")[0].removeprefix("WALL ") for line in lines}
    assert {
        "network",
        "files",
        "file names",
        "file modes",
        "process numbers",
        "processes",
        "environment",
        "privileges",
    } <= walls
    for what in ("a port", "a socket", "an abstract socket", "can be read", "can be written to", "can be killed", "environ of"):
        assert any(what in line for line in lines), what


class FakeJail:
    """A jail that does not open, or in which everything holds."""

    def __init__(self, kind: str, error: str = "", missing: tuple[str, ...] = ()) -> None:
        self.kind = self.name = kind
        self.error = error
        self.missing = missing
        self.is_closed = False

    def open(self, num_workspaces: int) -> Sequence[Cell]:
        if self.error:
            raise MachineError(self.error)
        return [self]

    def launch(self, control: int, limits: str) -> Launch:
        raise NotImplementedError

    def way_out(self, reason: str) -> str:
        return "do this" if "namespaces" in reason else ""

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """What the self-test was told to be missing; it passes."""
    told: list[Sequence[str]] = []

    async def passing(sandbox: object, missing: Sequence[str], timeout_s: float) -> None:
        told.append(missing)

    monkeypatch.setattr("gagar.sandbox.self_test.check_isolation", passing)
    return told


async def open_auto(monkeypatch: pytest.MonkeyPatch, *found: FakeJail) -> warm_sandbox.WarmSandbox:
    monkeypatch.setattr(jails, "every_jail", lambda: found)
    sandbox = Auto().make(3)
    assert isinstance(sandbox, warm_sandbox.WarmSandbox)
    await sandbox.open()
    return sandbox


async def test_auto_takes_the_strongest_that_holds_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, held: list[Sequence[str]]
) -> None:
    caplog.set_level(logging.INFO)
    strong, weak = FakeJail("bubblewrap", "no namespaces"), FakeJail("landlock", missing=("file names", "disk"))
    sandbox = await open_auto(monkeypatch, strong, weak)
    assert sandbox.jail is weak
    assert strong.is_closed
    assert held == [("file names", "disk")]
    said = "sandbox opened kind=landlock missing_walls=file names, disk refused=no namespaces; do this"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", said)]
    await sandbox.close()
    assert weak.is_closed


async def test_where_the_strongest_holds_nothing_weaker_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, held: list[Sequence[str]]
) -> None:
    caplog.set_level(logging.INFO)
    sandbox = await open_auto(monkeypatch, FakeJail("bubblewrap"), FakeJail("landlock", "never tried"))
    assert [record.getMessage() for record in caplog.records] == ["sandbox opened kind=bubblewrap missing_walls=none"]
    await sandbox.close()


async def test_where_none_holds_every_reason_is_told(monkeypatch: pytest.MonkeyPatch, held: list[Sequence[str]]) -> None:
    with pytest.raises(MachineError, match=r"expected one that holds, got no namespaces; no Landlock; do this$"):
        await open_auto(monkeypatch, FakeJail("bubblewrap", "no namespaces"), FakeJail("landlock", "no Landlock"))


async def test_without_the_program_of_bubblewrap_only_landlock_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none() -> list[Any]:
        raise MachineError("no bwrap")

    monkeypatch.setattr(jails, "bubblewrap_jails", none)
    assert [jail.kind for jail in jails.every_jail()] == ["landlock"]
    assert "kind=bubblewrap error=no bwrap" in caplog.text


async def test_a_directory_for_temporary_files_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    with pytest.raises(MachineError, match=r"expected a directory for temporary files, got .*; set TMPDIR to one"):
        await Auto().make(1).open()
