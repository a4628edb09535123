"""A handler that blocks the event loop is named."""

import asyncio
import time

import pytest

from gagar.stream.limits import Counters
from gagar.stream.loop_monitor import LoopMonitor


async def test_a_blocked_loop_is_reported_with_its_task(caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()
    monitor = LoopMonitor("verifier", counters)
    monitor.start()

    async def block() -> None:
        until = time.monotonic() + 0.4
        while time.monotonic() < until:
            pass

    await asyncio.sleep(0.06)
    await asyncio.create_task(block(), name="verifier trajectories[0]@7")
    monitor.stop()
    assert counters.blocked == 1
    assert "event loop blocked stage=verifier" in caplog.text
    assert "task=verifier trajectories[0]@7" in caplog.text
    assert "test_loop_monitor.py:" in caplog.text
