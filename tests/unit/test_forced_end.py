"""A signal ends a stage that starts at once, and asks one that is at work."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAGE = """
import asyncio, sys, time
from gagar.processes.forced_end import stop_event

async def main():
    stop = stop_event(lambda: sys.argv[1] == "at work")
    loading = asyncio.get_running_loop().run_in_executor(None, time.sleep, 0 if sys.argv[1] == "at work" else 60)
    print("up", flush=True)
    await stop.wait()
    print("in good order", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(("state", "told"), [("starting", b""), ("at work", b"in good order\n")])
def test_a_signal_ends_a_start_at_once_and_work_in_good_order(state: str, told: bytes) -> None:
    command = [sys.executable, "-c", STAGE, state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=50)
        assert time.monotonic() - asked < 10
    assert (process.returncode, output, errors) == (0, told, b"")
