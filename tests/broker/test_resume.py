"""The real sampler as a process that is killed again and again: it asks as one that never was."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import asking
from tests.broker.stages import stage_process
from tests.contract.world import KafkaWorld, MemoryWorld, Process
from topology.stages import SAMPLER

pytestmark = pytest.mark.broker

DEATHS = ("begin:2", "commit:4", "answer:3", "send:3")
"""In the first round, among the first training groups, and while outcomes and versions come."""


async def undisturbed() -> list[Any]:
    """What is asked for in memory, in one life."""
    world = MemoryWorld(1)
    log = asking.InstantLog(world.log)
    async with asyncio.timeout(30), Process(world, SAMPLER, asking.make_sampler()) as process:
        await asyncio.gather(asking.Rest(log, pause_s=0.1).run(), process.ended())
    return asking.facts(await log.requested())


async def killed_at(world: KafkaWorld, tmp_path: Path, deaths: Sequence[str]) -> list[Any]:
    """What is asked for on the broker when processes die so, one after the other, and the last one lives."""
    log = asking.WorldLog(world)
    async with asyncio.timeout(100):
        rest = asyncio.create_task(asking.Rest(log).run())
        for death in deaths:
            async with stage_process(world, "sampler", tmp_path, death) as doomed:
                assert await doomed.ended() == -signal.SIGKILL
        async with stage_process(world, "sampler", tmp_path) as last:
            assert await last.ended() == 0
        await rest
    return asking.facts(await log.requested())


async def test_the_sampler_killed_again_and_again_asks_as_one_that_was_not(kafka_servers: str, tmp_path: Path) -> None:
    world = KafkaWorld(kafka_servers, num_partitions=1)
    await asyncio.to_thread(world.create_topics)
    assert await killed_at(world, tmp_path, DEATHS) == await undisturbed()
