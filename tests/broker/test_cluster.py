"""A cluster of three: a stage goes on without one of the nodes, and without two of them no write is acknowledged or lost."""

import asyncio
import os
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from gagar.config import KafkaTable
from gagar.errors import UnavailableError
from gagar.processes.orphan_cleanup import environment
from gagar.records import encode
from gagar.stream.handlers import Transform
from gagar.stream.kafka.admin import Admin
from gagar.stream.transport import Send
from tests.broker.cluster import NUM_NODES, Cluster, Way, bring_back, cluster, kill_node, send_away, start_node
from tests.builders import make_request
from tests.contract.world import (
    REQUESTS,
    TOPICS,
    TRAJECTORIES,
    KafkaWorld,
    Process,
    commit_zeros,
    make_run,
    make_stage,
    make_trajectory,
    opened,
    read,
    write,
)

pytestmark = pytest.mark.broker

TRANSFORM = Transform(lambda request: [make_trajectory(request)])
INTERNAL = ("__consumer_offsets", "__transaction_state")
PATIENCE_S = 120.0
"""For a cluster that has just lost nodes or found them again, on a machine that others use too."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for the tests of this file, which one worker runs."""
    try:
        with cluster(tmp_path_factory.mktemp("cluster") / "kafka") as found:
            yield found
    except UnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Kafka: {error}")


class ReplicatedWorld(KafkaWorld):
    """Topics of three replicas."""

    def create_topics(self) -> None:
        with Admin(self.kafka) as admin:
            run = make_run(self.name, num_partitions=self.num_partitions)
            admin.apply(
                replace(run, kafka=KafkaTable(num_partitions=self.num_partitions, replication_factor=NUM_NODES)), TOPICS
            )
            commit_zeros(admin, run, TOPICS)


@pytest.fixture
async def world(nodes: Cluster) -> KafkaWorld:
    world = ReplicatedWorld(nodes.servers)
    await asyncio.to_thread(world.create_topics)
    return world


async def written(world: KafkaWorld, first: int, count: int) -> None:
    """Writes requests until that succeeds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await write(world, [make_request(f"t-{number:06}") for number in range(first, first + count)])
            except UnavailableError:
                await asyncio.sleep(0.5)


async def test_a_stage_goes_on_without_any_one_of_the_nodes(nodes: Cluster, world: KafkaWorld) -> None:
    await written(world, 0, 8)
    with Admin(world.kafka) as admin:
        names = [f"{world.name}.{REQUESTS.name}", *INTERNAL]
        topics = admin.describe(names)
    assert {(topic.replication_factor, topic.settings["min.insync.replicas"]) for topic in topics.values()} == {
        (NUM_NODES, "2")
    }
    assert set(topics) == set(names)
    async with Process(world, make_stage("transform"), TRANSFORM) as process:
        await process.until_finished(8, PATIENCE_S)
        for number, directory in enumerate(nodes.directories, 1):
            await asyncio.to_thread(kill_node, directory)
            await written(world, 8 * number, 8)
            await process.until_finished(8 * (number + 1), PATIENCE_S)
            await asyncio.to_thread(start_node, directory, environment(directory.parent))
    made = [delivery.record.group_id for delivery in await read(world, TRAJECTORIES)]
    assert len(made) == len(set(made)) == 8 * (NUM_NODES + 1)


@pytest.mark.parametrize("way", ["freeze", "kill", "stop"])
async def test_without_two_of_the_nodes_no_write_is_acknowledged(nodes: Cluster, world: KafkaWorld, way: Way) -> None:
    two = nodes.directories[1:]
    await written(world, 0, 8)
    async with opened(world) as transport:
        producer = await transport.start_producer("other", TOPICS)
        await producer.begin()
        await asyncio.to_thread(send_away, two, way)
        try:
            answer = await producer.send(Send(topic=REQUESTS.name, key=b"", value=encode(make_request("t-none"))))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(answer, 5.0)
        finally:
            await asyncio.to_thread(bring_back, two, environment(two[0].parent))
        await producer.close()
    await written(world, 8, 8)
    there: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(there) < 16:  # the end that readers see follows a commit's answer by a moment
            there = [delivery.record.group_id for delivery in await read(world, REQUESTS)]
    assert sorted(there) == [f"t-{number:06}" for number in range(16)]
