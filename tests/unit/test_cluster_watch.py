"""Outages are noted, and a dead local broker is started again."""

import asyncio
import time
from pathlib import Path

import pytest

from gagar.broker.watch import ClusterWatch
from gagar.errors import UnavailableError
from gagar.processes.storage import Storage


class FakeCluster:
    """Up or down as it is told; a revival may fail."""

    def __init__(self, *, is_up: bool = True, num_failures: int = 0) -> None:
        self.up = is_up
        self.num_failures = num_failures
        self.revived = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def is_up(self) -> bool:
        return self.up

    def revive(self) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise UnavailableError("java: expected x, got y")
        self.up = True
        self._loop.call_soon_threadsafe(self.revived.set)


async def test_an_outage_counts_from_when_it_was_seen() -> None:
    cluster = FakeCluster()
    watch = ClusterWatch(cluster.is_up)
    started = time.monotonic()
    assert not await watch.was_outage(started)
    cluster.up = False
    assert await watch.was_outage(started)
    cluster.up = True
    assert await watch.was_outage(started)
    assert not await watch.was_outage(time.monotonic())


@pytest.mark.parametrize("num_failures", [0, 2])
async def test_a_broker_that_is_down_is_started_again(num_failures: int) -> None:
    cluster = FakeCluster(is_up=False, num_failures=num_failures)
    watch = ClusterWatch(cluster.is_up, cluster.revive, watch_s=0, backoff_s=0)
    started = time.monotonic()
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(10):
        await cluster.revived.wait()
    task.cancel()
    assert await watch.was_outage(started)
    assert cluster.up


async def test_a_foreign_cluster_is_only_watched() -> None:
    cluster = FakeCluster(is_up=False)
    watch = ClusterWatch(cluster.is_up, watch_s=0)
    task = asyncio.create_task(watch.run())
    assert await watch.was_outage(time.monotonic())
    assert not task.done()
    task.cancel()


async def test_a_broker_whose_directory_is_gone_is_not_started_in_an_empty_one(tmp_path: Path) -> None:
    cluster = FakeCluster(is_up=False)
    storage = Storage(tmp_path / "never made")
    (tmp_path / "never made").mkdir()
    watch = ClusterWatch(cluster.is_up, cluster.revive, storage, watch_s=0)
    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError, match="expected the directory that this run began with, got another one"):
            await watch.run()
    assert not cluster.revived.is_set()
