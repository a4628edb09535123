"""Nothing of a sandbox outlives the process that opened it, however that ends."""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from gagar.sandbox import kinds
from gagar.sandbox.warm_sandbox import WarmSandbox
from tests.sleepers import all_with, num_with, wait_for

pytestmark = [pytest.mark.sandbox, pytest.mark.asyncio(loop_scope="session")]

MARK = "31536123"
"""Seconds that only this test sleeps."""
OWNER = f"""
import asyncio, sys
from gagar.sandbox import kinds

async def main():
    sandbox = getattr(kinds, sys.argv[1])().make(1)
    await sandbox.open()
    async with sandbox.workspace({{}}) as workspace:
        print("running", flush=True)
        await workspace.run("setsid sleep {MARK} & sleep {MARK}", 1000)

asyncio.run(main())
"""


def table_of(sandbox: WarmSandbox) -> str:
    """Name of the table that makes another sandbox of its kind."""
    assert sandbox.jail is not None
    return sandbox.jail.kind.capitalize()


async def test_a_killed_owner_takes_everything_along(sandbox: WarmSandbox) -> None:
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, table_of(sandbox), stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"running\n"
    await wait_for(MARK, 2)
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    await wait_for(MARK, 0)


async def test_a_cancelled_user_leaves_nothing(sandbox: WarmSandbox) -> None:
    async def use() -> None:
        async with sandbox.workspace({}) as workspace:
            await workspace.run(f"setsid sleep {MARK} & sleep {MARK}", 1000)

    task = asyncio.create_task(use())
    await wait_for(MARK, 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert num_with(MARK) == 0


async def test_a_closed_sandbox_is_gone_with_its_workspaces(sandbox: WarmSandbox) -> None:
    other = getattr(kinds, table_of(sandbox))().make(1)
    await other.open()

    async def use() -> None:
        async with other.workspace({}) as workspace:
            await workspace.run(f"sleep {MARK}", 1000)

    task = asyncio.create_task(use())
    await wait_for(MARK, 1)
    await other.close()
    await asyncio.wait([task], timeout=20)
    assert task.done()
    assert isinstance(task.exception(), Exception)
    await wait_for(MARK, 0)


async def test_folders_go_with_a_closed_sandbox_and_at_the_next_start_with_a_killed_owner(
    sandbox: WarmSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = (sys.executable, "-c", OWNER, table_of(sandbox))
    owner = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"running\n"
    owner.kill()
    await owner.wait()
    await wait_for(MARK, 0)
    other = getattr(kinds, table_of(sandbox))().make(1)
    await other.open()
    await other.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_workspace_whose_guard_was_killed_leaves_no_process(sandbox: WarmSandbox) -> None:
    """As the kernel may do when the machine has no memory left."""
    if table_of(sandbox) != "Landlock":
        pytest.skip("a promise of landlock: elsewhere the kernel ends a namespace with its first process")
    async with sandbox.workspace({}) as workspace:
        task = asyncio.create_task(workspace.run(f"setsid sleep {MARK} & sleep {MARK}", 1000))
        await wait_for(MARK, 2)
        (sleeper, _) = all_with(MARK)
        servers = {keeper.server._process.pid for keeper in sandbox._keepers if keeper.server is not None}
        guard = sleeper
        while (parent := parent_of(guard)) not in servers:
            guard = parent
        os.kill(guard, signal.SIGKILL)
        await wait_for(MARK, 0)
        assert (await task).exit_code == -1
    async with sandbox.workspace({}) as workspace:
        assert (await workspace.run("echo fine", 30.0)).output == "fine\n"


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
