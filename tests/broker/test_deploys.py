"""Deploys: what scaling costs that was finished, and rolling restarts, which cost nothing."""

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gagar.errors import FencedError
from gagar.stream.handlers import Transform
from tests.broker.stages import StageProcess, stage_process, until_count
from tests.builders import make_request
from tests.contract.world import NUM_PARTITIONS, TRAJECTORIES, KafkaWorld, Process, make_stage, make_trajectory, write

pytestmark = pytest.mark.broker

LONG_S = 3600.0


async def test_scaling_under_load_makes_next_to_nothing_again_that_was_finished(world: KafkaWorld, tmp_path: Path) -> None:
    num = 1500
    await write(world, [make_request(f"t-{number:06d}") for number in range(num)])
    async with stage_process(world, "effect", tmp_path, handle_s=2.0) as one:
        await until_count(world, TRAJECTORIES, 200)
        async with stage_process(world, "effect", tmp_path, handle_s=2.0) as two:
            found = await until_count(world, TRAJECTORIES, num, 90)
            for stage in (two, one):
                stage.send(signal.SIGTERM)
                assert await stage.ended(15) == 0
            again = set(one.keys("done")) & set(two.keys("begun"))
            print(f"made again {len(again)}, counted {one.count('wasted')}, abandoned {one.count('abandoned')}")  # noqa: T201
    assert set(found.values()) == {1}
    assert len(again) <= 2
    assert one.count("wasted") >= len(again)
    assert one.count("abandoned") > len(again), "the window was full"


@pytest.mark.parametrize("num_workers", [2, 4])
async def test_a_rolling_restart_of_named_members_abandons_nothing(world: KafkaWorld, tmp_path: Path, num_workers: int) -> None:
    num, lives = 300, []
    async with AsyncExitStack() as stack:

        async def start(member: str) -> StageProcess:
            life = await stack.enter_async_context(
                stage_process(world, "effect", tmp_path, handle_s=3.0, drain_s=LONG_S, member=member)
            )
            lives.append(life)
            return life

        workers = {f"worker-{number}": await start(f"worker-{number}") for number in range(num_workers)}
        async with asyncio.timeout(60):
            while any(len(worker.numbers) != NUM_PARTITIONS // num_workers for worker in workers.values()):
                await asyncio.sleep(0.1)
        for turn, (member, worker) in enumerate(workers.items()):
            before = len(worker.keys("begun"))
            await write(world, [make_request(f"t-{turn}{number:05d}") for number in range(num)])
            async with asyncio.timeout(60):
                while len(worker.keys("begun")) == before:
                    await asyncio.sleep(0.05)
            worker.send(signal.SIGTERM)
            assert await worker.ended(60) == 0
            successor = await start(member)
            await successor.until_logged("lane taken over")
        found = await until_count(world, TRAJECTORIES, num * num_workers, 90)
        for worker in lives[num_workers:]:
            worker.send(signal.SIGTERM)
            assert await worker.ended(60) == 0
    assert set(found.values()) == {1}
    assert [(life.count("abandoned"), life.count("wasted")) for life in lives] == [(0, 0)] * (2 * num_workers)
    assert set(Counter(key for life in lives for key in life.keys("begun")).values()) == {1}


async def test_a_second_signal_ends_long_work_at_once(world: KafkaWorld, tmp_path: Path) -> None:
    await write(world, [make_request(f"t-{number:06d}") for number in range(20)])
    async with stage_process(world, "effect", tmp_path, handle_s=1e6, drain_s=LONG_S) as stage:
        await stage.until_logged("handler begun")
        stage.send(signal.SIGTERM)
        with pytest.raises(TimeoutError):
            await stage.ended(6.0)
        stage.send(signal.SIGTERM)
        assert await stage.ended(8.0) == 0
        assert stage.count("abandoned") == stage.count("delivered") > 0


async def test_two_processes_of_the_same_name_do_not_fight_for_ever(world: KafkaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = iter([12, 3])
    monkeypatch.setattr("gagar.stream.kafka.client.random.randint", lambda *bounds: next(chance))
    stage = make_stage("transform")
    transform = Transform(lambda request: [make_trajectory(request)])
    async with Process(world, stage, transform, member="a") as one, Process(world, stage, transform, member="a") as two:
        async with asyncio.timeout(60):
            while not (has_ended(one) or has_ended(two)):
                await asyncio.sleep(0.1)
        fenced, alive = (one, two) if has_ended(one) else (two, one)
        assert not has_ended(alive)
        with pytest.raises(FencedError, match="expected one process with the name a, got another that takes its place; start"):
            await fenced.ended()
        await write(world, [make_request(f"t-{number:06d}") for number in range(20)])
        assert set((await until_count(world, TRAJECTORIES, 20)).values()) == {1}
        assert not has_ended(alive)


async def test_a_named_process_joins_anew_after_an_answer_of_the_group_that_the_client_does_not_know(world: KafkaWorld) -> None:
    """The broker's FENCED_INSTANCE_ID reaches us so, if it comes between joining and taking part."""
    from aiokafka.errors import KafkaError  # noqa: TID251  what the client raises

    transform = Transform(lambda request: [make_trajectory(request)])
    async with Process(world, make_stage("transform"), transform, member="a") as process:
        await process.until(lambda: process.runtime.lanes)
        membership = process.runtime._membership
        before = membership._consumer
        before._coordinator._pending_exception = KafkaError("UnknownError()")
        await process.until(lambda: membership._consumer is not before and membership.is_held)
        await write(world, [make_request(f"t-{number:06d}") for number in range(20)])
        assert set((await until_count(world, TRAJECTORIES, 20)).values()) == {1}


def has_ended(process: Process) -> bool:
    return process.task is not None and process.task.done()
