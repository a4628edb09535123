"""A signal ends a stage that starts at once, and asks one that is at work; a second one ends its wait for that work."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gagar.processes.forced_end import stop_event

ROOT = Path(__file__).parents[2]
STAGE = """
import asyncio, sys, time
from gagar.processes.forced_end import stop_event

async def main():
    is_starting, at_once = sys.argv[1] == "starting", asyncio.Event()
    stop = stop_event(lambda: not is_starting, 3600.0, at_once.set)
    loading = asyncio.get_running_loop().run_in_executor(None, time.sleep, 60 if is_starting else 0)
    print("up", flush=True)
    await stop.wait()
    if sys.argv[1] == "long work":
        print("draining", flush=True)
        await at_once.wait()
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


def test_a_second_signal_ends_long_work_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", STAGE, "long work"], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"draining\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=50)[0] == b"in good order\n"
    assert process.returncode == 0


@pytest.mark.parametrize(("num_signals", "ends_after_s"), [(1, [3610.0]), (2, [3610.0, 10.0])])
async def test_the_end_by_force_leaves_work_its_time(
    monkeypatch: pytest.MonkeyPatch, num_signals: int, ends_after_s: list[float]
) -> None:
    found: list[float] = []
    monkeypatch.setattr("gagar.processes.forced_end.end_by_force_after", found.append)
    stop = stop_event(drain_s=3600.0)
    loop = asyncio.get_running_loop()
    try:
        for _ in range(num_signals):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0.01)
        await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    assert found == ends_after_s
