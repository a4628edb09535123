"""Nothing of a sandbox outlives the process that opened it, however that ends."""

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest

from gagar.sandbox.bubblewrap import BubblewrapSandbox
from gagar.sandbox.kinds import Bubblewrap

pytestmark = [pytest.mark.sandbox, pytest.mark.asyncio(loop_scope="session")]

MARK = "31536123"
"""Seconds that only this test sleeps."""
OWNER = f"""
import asyncio
from gagar.sandbox.bubblewrap import BubblewrapSandbox
from gagar.sandbox.kinds import Bubblewrap

async def main():
    sandbox = BubblewrapSandbox(Bubblewrap(), concurrency=1)
    await sandbox.open()
    async with sandbox.workspace({{}}) as workspace:
        print("running", flush=True)
        await workspace.run("setsid sleep {MARK} & sleep {MARK}", 1000)

asyncio.run(main())
"""


def num_sleepers() -> int:
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += MARK.encode() in file.read_bytes().split(b"\0")
        except OSError:
            continue
    return found


async def wait_for_sleepers(number: int) -> None:
    deadline = time.monotonic() + 20
    while num_sleepers() != number:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_a_killed_owner_takes_everything_along(sandbox: BubblewrapSandbox) -> None:
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"running\n"
    await wait_for_sleepers(2)
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    await wait_for_sleepers(0)


async def test_a_cancelled_user_leaves_nothing(sandbox: BubblewrapSandbox) -> None:
    async def use() -> None:
        async with sandbox.workspace({}) as workspace:
            await workspace.run(f"setsid sleep {MARK} & sleep {MARK}", 1000)

    task = asyncio.create_task(use())
    await wait_for_sleepers(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert num_sleepers() == 0


async def test_a_closed_sandbox_is_gone_with_its_workspaces(sandbox: BubblewrapSandbox) -> None:
    other = BubblewrapSandbox(Bubblewrap(), concurrency=1)
    await other.open()

    async def use() -> None:
        async with other.workspace({}) as workspace:
            await workspace.run(f"sleep {MARK}", 1000)

    task = asyncio.create_task(use())
    await wait_for_sleepers(1)
    await other.close()
    await asyncio.wait([task], timeout=20)
    assert task.done()
    assert isinstance(task.exception(), Exception)
    await wait_for_sleepers(0)
