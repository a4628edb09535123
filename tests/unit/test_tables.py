"""Partitions of topics, and tables over a cluster that has just started."""

import pytest

from gagar.errors import UnavailableError
from gagar.records import PolicyVersion, Record
from gagar.stream.memory.transport import MemoryTransport
from gagar.stream.readers.scans import scan_transport
from gagar.stream.readers.tables import TableFollower
from gagar.stream.readers.watched import partitions_of
from gagar.stream.spec import Topic
from gagar.stream.transport import Partition
from tests.builders import make_version
from tests.contract.world import FAST, VERSIONS, MemoryWorld, write


class StartingTransport(MemoryTransport):
    """Of its topics the first questions learn nothing."""

    num_unknown = 1

    async def num_partitions(self, topic: Topic, /) -> int:
        self.num_unknown -= 1
        return 0 if self.num_unknown >= 0 else await super().num_partitions(topic)


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
