"""Real processes, really killed: what is visible under read-committed is there exactly once."""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gagar.records import encode
from gagar.stream.handlers import Delivery, Effect, Output
from gagar.stream.readers.references import LogReferences
from gagar.stream.transport import Committed, Partition, Send
from tests.broker.stages import counts, stage_process, until_count
from tests.builders import make_request
from tests.contract.world import (
    FAST,
    NUM_PARTITIONS,
    REQUESTS,
    TOKENS,
    TRAJECTORIES,
    KafkaWorld,
    Process,
    make_stage,
    make_trajectory,
    opened,
    read,
    write,
)

pytestmark = pytest.mark.broker

NUM = 300
NAMES = [f"k-{number:06d}" for number in range(8)]


async def check_attempts(world: KafkaWorld, found: Counter[str]) -> None:
    """Each attempt once, and what it refers to is its own."""
    assert set(found.values()) == {1}
    trajectories = [d.record for d in await read(world, TRAJECTORIES)]
    async with opened(world) as transport:
        references = LogReferences(transport, [TOKENS])
        try:
            tokens = await references.read([trajectory.attempt.tokens for trajectory in trajectories], TOKENS.record)
        finally:
            await references.close()
    assert [t.group_id for t in tokens] == [t.group_id for t in trajectories]  # type: ignore[attr-defined]
    assert set((await counts(world, TOKENS)).values()) == {1}


async def test_kills_at_any_moment_with_a_second_member_lose_and_double_nothing(world: KafkaWorld, tmp_path: Path) -> None:
    chance = random.Random(1)
    await write(world, [make_request(f"t-{number:06d}") for number in range(2000)])
    async with stage_process(world, "effect", tmp_path, handle_s=0.3) as survivor:
        for _ in range(3):
            async with stage_process(world, "effect", tmp_path, handle_s=0.3) as victim:
                await asyncio.sleep(chance.uniform(1.5, 4.0))
                victim.send(signal.SIGKILL)
                await victim.ended()
        found = await until_count(world, TRAJECTORIES, 2000, 90)
        survivor.send(signal.SIGTERM)
        assert await survivor.ended(15) == 0
    await check_attempts(world, found)


async def test_a_stopped_process_that_wakes_after_its_partitions_moved_writes_nothing(
    world: KafkaWorld, tmp_path: Path
) -> None:
    async with stage_process(world, "effect", tmp_path, handle_s=2.0) as sleeper:
        await write(world, [make_request(f"t-{number:06d}") for number in range(NUM)])
        await until_count(world, TRAJECTORIES, 20)
        sleeper.send(signal.SIGSTOP)
        async with stage_process(world, "effect", tmp_path, handle_s=0.05):
            await until_count(world, TRAJECTORIES, NUM)
            sleeper.send(signal.SIGCONT)
            await asyncio.sleep(4.0)
            await write(world, [make_request(f"u-{number:06d}") for number in range(40)])
            found = await until_count(world, TRAJECTORIES, NUM + 40)
        sleeper.send(signal.SIGTERM)
        assert await sleeper.ended(15) == 0
    await check_attempts(world, found)


class Lengthy(Effect):
    """Answers each request with a trajectory of 900 kB, half of that in the log."""

    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        return [make_trajectory(delivery, failure=os.urandom(450_000).hex())]


def limit_producers(directory: Path, world: KafkaWorld, byte_rate: int) -> None:
    """Sets the broker's quota for all clients, bytes per second, by Kafka's own tool: no client of ours can."""
    from gagar.broker.local import _java_command

    to_alter = ["--alter", "--add-config", f"producer_byte_rate={byte_rate}", "--entity-type", "clients", "--entity-default"]
    tool = [*_java_command(directory), "kafka.admin.ConfigCommand", "--bootstrap-server", world.servers, *to_alter]
    subprocess.run(tool, cwd=directory, check=True, capture_output=True, timeout=60)


class TestOwnBroker:
    """With a broker that is taken away."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Iterator[Path]:
        from gagar.broker.local import broker, stop_broker

        with broker(tmp_path / "broker"):
            yield tmp_path / "broker"
        stop_broker(tmp_path / "broker")  # the one that a test started anew

    async def started(self, directory: Path, num_requests: int = NUM) -> KafkaWorld:
        from gagar.broker.address import running_state

        state = running_state(directory)
        assert state is not None
        world = KafkaWorld(state.address)
        await asyncio.to_thread(world.create_topics)
        await write(world, [make_request(f"t-{number:06d}") for number in range(num_requests)])
        return world

    async def test_what_was_committed_as_the_broker_was_killed_counts_whole_or_not_at_all(self, directory: Path) -> None:
        """A broker without KAFKA-20734: a coordinator that finds a partition without a leader waits for one."""
        from gagar.broker.address import running_state
        from gagar.broker.local import start_broker
        from gagar.stream.kafka.admin import Admin

        world = await self.started(directory)
        async with opened(world) as transport:
            producers = {name: await transport.start_producer(name, (TRAJECTORIES,)) for name in NAMES}
            for name, producer in producers.items():
                await producer.begin()
                trajectory = make_trajectory(make_request(name))
                await (await producer.send(Send(topic=TRAJECTORIES.name, key=name.encode(), value=encode(trajectory))))
            commits = [
                asyncio.create_task(producer.commit(name, {Partition(REQUESTS.name, 0): Committed(offset=1, metadata="")}))
                for name, producer in producers.items()
            ]
            await asyncio.wait(commits, return_when=asyncio.FIRST_COMPLETED)
            state = running_state(directory)
            assert state is not None
            os.kill(state.pid, signal.SIGKILL)
            for commit in commits:
                commit.cancel()
            await asyncio.gather(*commits, return_exceptions=True)
            await asyncio.gather(*(producer.close() for producer in producers.values()))
        await asyncio.to_thread(start_broker, directory)
        async with opened(world) as transport:
            for name in NAMES:  # settles what the coordinator has not
                await (await transport.start_producer(name, (TRAJECTORIES,))).close()
        with Admin(world.kafka) as admin:
            counted = {name for name in NAMES if admin.committed(f"{world.name}.{name}")}
        assert {d.record.group_id for d in await read(world, TRAJECTORIES)} == counted
        assert counted

    async def test_under_a_quota_a_transaction_shrinks_until_it_fits_its_time(self, directory: Path) -> None:
        """What a lane has finished at first is 7 MB, all that the quota gives in 18 s."""
        world = await self.started(directory, 64)
        await asyncio.to_thread(limit_producers, directory, world, 400_000)
        async with Process(world, make_stage("effect"), Lengthy(), replace(FAST, transaction_timeout_s=3.0)) as process:
            await process.until_finished(64, 120)
            assert process.runtime.counters.takeovers > NUM_PARTITIONS, "no transaction was too large for its time"
        assert list((await counts(world, TRAJECTORIES)).values()) == [1] * 64

    @pytest.mark.alone
    async def test_sigterm_ends_a_stage_in_time_when_no_broker_answers(self, directory: Path, tmp_path: Path) -> None:
        from gagar.broker.local import stop_broker

        world = await self.started(directory)
        async with stage_process(world, "effect", tmp_path, handle_s=1.0) as stage:
            await until_count(world, TRAJECTORIES, 20)
            await asyncio.to_thread(stop_broker, directory)
            await asyncio.sleep(1.0)
            began = time.monotonic()
            stage.send(signal.SIGTERM)
            await stage.ended(15)
            assert time.monotonic() - began < 15

    async def test_a_broker_restart_loses_and_doubles_nothing(self, directory: Path, tmp_path: Path) -> None:
        from gagar.broker.local import start_broker, stop_broker

        world = await self.started(directory)
        async with stage_process(world, "effect", tmp_path, handle_s=4.0) as stage:
            await until_count(world, TRAJECTORIES, 20)
            await asyncio.to_thread(stop_broker, directory)
            state = await asyncio.to_thread(start_broker, directory)
            assert state.address == world.servers
            found = await until_count(world, TRAJECTORIES, NUM, 90)
            stage.send(signal.SIGTERM)
            assert await stage.ended(15) == 0
        await check_attempts(world, found)
