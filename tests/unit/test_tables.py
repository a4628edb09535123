"""Partitions of topics, and tables over a cluster that has just started or that fails while they are read."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from gagar.errors import GagarError, UnavailableError
from gagar.records import PolicyVersion, Record, encode
from gagar.stream.memory.transport import MemoryTransport
from gagar.stream.readers.scans import scan_transport
from gagar.stream.readers.tables import TableFollower
from gagar.stream.readers.watched import partitions_of
from gagar.stream.routing import key_of
from gagar.stream.spec import Topic
from gagar.stream.transport import Partition, Send, TopicIdentity
from tests.builders import make_version
from tests.contract.world import FAST, VERSIONS, MemoryWorld, write
from tests.unit.test_watched import CountingTransport


class StartingTransport(MemoryTransport):
    """Of its topics the first questions learn nothing."""

    num_unknown = 1

    async def describe(self, topics: Sequence[Topic], /) -> dict[str, TopicIdentity]:
        self.num_unknown -= 1
        return {} if self.num_unknown >= 0 else await super().describe(topics)


async def test_a_topic_of_which_nothing_is_told_is_not_one_without_records() -> None:
    world = MemoryWorld()
    with pytest.raises(UnavailableError, match="topic policy-versions: expected partitions, got none"):
        await partitions_of(StartingTransport(world.log), [VERSIONS])
    with pytest.raises(UnavailableError, match="topic policy-versions: expected partitions, got none"):
        [delivery async for delivery in scan_transport(StartingTransport(world.log), [VERSIONS])]
    assert await partitions_of(world.transport(), [VERSIONS]) == [Partition("policy-versions", 0)]


async def test_tables_wait_until_a_starting_cluster_tells_of_them() -> None:
    world, observed = MemoryWorld(), list[Record]()
    await write(world, [make_version(1)])
    tables = TableFollower("reader", StartingTransport(world.log), [VERSIONS], observed.append, FAST)
    await tables.load()
    await tables.close()
    assert [record.version for record in observed if isinstance(record, PolicyVersion)] == [1]


async def test_a_stage_without_tables_waits_for_none() -> None:
    tables = TableFollower("reader", StartingTransport(MemoryWorld().log), [], lambda _: None, FAST)
    await tables.load()
    await tables.follow()


class Load:
    """A table of five records, read two at a time, and of one more that comes later; what is observed of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gagar.stream.readers.watched.POLL_RECORDS", 2)
        self.world = MemoryWorld()
        self.faults_after: dict[int, list[Exception]] = {}
        """By version: what the polls after it raise."""
        self.observed: list[int] = []
        self.transport = CountingTransport(self.world)
        self.tables = TableFollower("reader", self.transport, [VERSIONS], self._observe, FAST)

    def _observe(self, record: Record) -> None:
        assert isinstance(record, PolicyVersion)
        self.observed.append(record.version)
        self.world.log.faults["poll"] = self.faults_after.pop(record.version, [])

    def _write(self, version: int) -> None:
        """Outside of a transaction, whose marker would be polled for a second."""
        record = make_version(version)
        self.world.log.append(Send(topic=VERSIONS.name, key=key_of(record).encode(), value=encode(record)))

    def begin(self) -> "asyncio.Task[None]":
        for version in range(1, 6):
            self._write(version)
        return asyncio.create_task(self.tables.load())

    async def again(self) -> list[int]:
        """All that is observed once a second call has read what has come meanwhile."""
        self._write(6)
        await self.tables.load()
        await self.tables.close()
        return self.observed


@pytest.mark.parametrize("num_turns", range(14))
async def test_a_load_that_is_cancelled_anywhere_goes_on_where_it_was(num_turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a source's lane does when its commits fail meanwhile."""
    load = Load(monkeypatch)
    first = load.begin()
    for _ in range(num_turns):
        await asyncio.sleep(0)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    assert await load.again() == [1, 2, 3, 4, 5, 6]
    assert len(load.transport.opened) == 1


@pytest.mark.parametrize("after", [2, 4])
async def test_a_load_that_failed_goes_on_where_it_was(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(monkeypatch)
    load.faults_after[after] = [GagarError("poll: expected records, got nonsense")]
    with pytest.raises(GagarError, match="got nonsense"):
        await load.begin()
    assert load.observed == list(range(1, after + 1))
    assert await load.again() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("after", [2, 4])
async def test_a_load_that_is_cancelled_while_the_log_is_down_goes_on_where_it_was(
    after: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load = Load(monkeypatch)
    load.faults_after[after] = [UnavailableError("poll: expected an answer, got none")] * 2
    first = load.begin()
    async with asyncio.timeout(10):
        while not caplog.messages:
            await asyncio.sleep(0)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    assert caplog.messages == ["tables of reader interrupted failures=1 error=poll: expected an answer, got none"]
    assert await load.again() == [1, 2, 3, 4, 5, 6]
    assert len(load.transport.opened) == 3, "the first one, and one after each failure"
