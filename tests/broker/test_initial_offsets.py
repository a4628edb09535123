"""Groups begin before stages start, and lost offsets are told, not taken for a beginning."""

import asyncio

import pytest

from gagar.config import KafkaTable
from gagar.errors import GagarError, UnavailableError
from gagar.stream.handlers import Transform
from gagar.stream.kafka.admin import Admin
from gagar.stream.kafka.initial_offsets import commit_initial_offsets
from gagar.stream.spec import Stage
from gagar.stream.transport import Partition
from tests.builders import make_request
from tests.contract.world import (
    NUM_PARTITIONS,
    REQUESTS,
    TRAJECTORIES,
    KafkaWorld,
    Process,
    committed,
    make_run,
    make_stage,
    make_trajectory,
    opened,
    read,
    write,
)

pytestmark = pytest.mark.broker

STAGE = make_stage("effect", name="late")


def begin_late(world: KafkaWorld, num_partitions: int = NUM_PARTITIONS) -> None:
    with Admin(KafkaTable(bootstrap_servers=world.servers)) as admin:
        commit_initial_offsets(admin, make_run(world.name, num_partitions=num_partitions), [STAGE])


async def test_a_run_whose_topics_have_all_grown_does_not_begin_in_the_new_partitions(world: KafkaWorld) -> None:
    """They are empty, and what was written before would not be met there by what comes."""
    await asyncio.to_thread(begin_late, world)
    await write(world, [make_request(f"t-{number:06d}") for number in range(40)])
    await world.grow(REQUESTS.name, 2 * NUM_PARTITIONS)
    told = (
        r"late: expected committed offsets in t\w+\.rollout-requests\[4\], .*, or the topic has grown: take another run\.name"
    )
    with pytest.raises(UnavailableError, match=told):
        await asyncio.to_thread(begin_late, world, 2 * NUM_PARTITIONS)


async def test_a_group_begins_at_the_start_of_each_input_once(world: KafkaWorld) -> None:
    await asyncio.to_thread(begin_late, world)
    await write(world, [make_request(f"t-{number:06d}") for number in range(40)])
    await asyncio.to_thread(begin_late, world)
    found = await committed(world, STAGE)
    assert {at: entry.offset for at, entry in found.items()} == {Partition(REQUESTS.name, n): 0 for n in range(NUM_PARTITIONS)}


async def test_a_group_that_was_set_back_by_hand_does_nothing_twice(world: KafkaWorld) -> None:
    """As `kafka-consumer-groups --reset-offsets` does it: to 0, without metadata."""
    stage = make_stage("transform")
    keys = {f"t-{number:06d}" for number in range(40)}
    await write(world, [make_request(key) for key in sorted(keys)])
    handler = Transform(lambda request: [make_trajectory(request)])
    async with Process(world, stage, handler) as process:
        await process.until_finished(40)
    await asyncio.to_thread(set_back, world, stage)
    async with Process(world, stage, handler) as process:
        with pytest.raises(GagarError, match="got none: the offset was set by hand"):
            await process.ended()
    assert sorted(delivery.key for delivery in await read(world, TRAJECTORIES)) == sorted(keys)


def set_back(world: KafkaWorld, stage: Stage) -> None:
    offsets = {(f"{world.name}.{REQUESTS.name}", number): 0 for number in range(NUM_PARTITIONS)}
    with Admin(KafkaTable(bootstrap_servers=world.servers)) as admin:
        admin.commit(f"{world.name}.{stage.name}", offsets, "")


async def test_a_group_that_lost_its_offsets_does_not_begin_anew(world: KafkaWorld) -> None:
    await write(world, [make_request(f"t-{number:06d}") for number in range(40)])
    with pytest.raises(
        UnavailableError, match=r"late: expected committed offsets in .*rollout-requests\[0\], .*; try again if"
    ):
        await asyncio.to_thread(begin_late, world)
    with pytest.raises(
        UnavailableError, match=r"offsets of late: expected one in each partition, got none in rollout-requests\[0\]"
    ):
        await committed(world, STAGE)
    async with opened(world) as transport:
        assert (await transport.describe([REQUESTS]))[REQUESTS.name].num_partitions == NUM_PARTITIONS
