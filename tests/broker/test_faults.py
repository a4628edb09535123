"""Faults that a stage must notice by itself: clients that die in silence, retention that overtakes, brokers that are mute."""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gagar.broker.address import running_state
from gagar.broker.local import broker, stop_broker
from gagar.config import KafkaTable
from gagar.records import PolicyVersion, RolloutRequest
from gagar.stream.handlers import Delivery, Effect, Output
from gagar.stream.journal import LogJournal
from tests.broker.stages import StageProcess, counts, stage_process, until_count
from tests.builders import make_request
from tests.contract.world import (
    DEAD_LETTERS,
    FAST,
    OUTCOMES,
    TRAJECTORIES,
    VERSIONS,
    KafkaWorld,
    Process,
    make_stage,
    make_trajectory,
    write,
)
from tests.contract.world import TOPICS as WORLD_TOPICS

pytestmark = pytest.mark.broker

IMPATIENT = msgspec.structs.replace(FAST, stall_s=1.0)
FRESH_S = 5.0


class Worker(Effect):
    """Answers each request; counts."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.observed: list[Any] = []

    def observe(self, record: Any, /) -> None:
        self.observed.append(record)

    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        self.calls[delivery.key] += 1
        return [make_trajectory(delivery)]


def requests(count: int, prefix: str = "t") -> list[RolloutRequest]:
    return [make_request(f"{prefix}-{number:06d}") for number in range(count)]


def kill_fetcher(reader: Any) -> None:
    """The client's fetching ends, and nobody is told."""
    fetcher = reader._consumer._fetcher
    for task in (fetcher._fetch_task, *fetcher._pending_tasks):
        task.cancel()


async def test_a_lane_whose_reader_dies_in_silence_opens_another(world: KafkaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagar.stream.kafka.client.FRESH_S", 1.0)
    await write(world, requests(20))
    worker = Worker()
    async with Process(world, make_stage("effect"), worker, IMPATIENT) as process:
        await process.until_finished(20)
        for lane in process.runtime.lanes.values():
            kill_fetcher(lane._reader._reader._reader)
        await write(world, requests(20, "u"))
        await process.until_finished(40)
    assert set(worker.calls.values()) == {1}
    assert process.runtime.counters.takeovers == 8
    assert len(await counts(world, TRAJECTORIES)) == 40


async def test_a_table_whose_reader_dies_in_silence_is_followed_on(world: KafkaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagar.stream.kafka.client.FRESH_S", 1.0)
    opened: list[Any] = []
    worker = Worker()
    process = Process(world, make_stage("effect", tables=(VERSIONS,)), worker, IMPATIENT)
    open_reader = process.transport.open_reader

    async def noted(partitions: Any, /, **options: Any) -> Any:
        opened.append(await open_reader(partitions, **options))
        return opened[-1]

    monkeypatch.setattr(process.transport, "open_reader", noted)
    async with process:
        await process.until(lambda: len(process.runtime.lanes) == 4)
        kill_fetcher(opened[0])
        await write(world, [PolicyVersion(run_id="r", version=1, step=1, location="x", checksum="y")])
        await process.until(lambda: len(worker.observed) == 1)


async def test_a_journal_whose_reader_dies_in_silence_reads_on(world: KafkaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagar.stream.kafka.client.FRESH_S", 1.0)
    stage = make_stage("learner", outputs=(OUTCOMES,), name="reader")
    journal = LogJournal(stage, world.transport(), DEAD_LETTERS, IMPATIENT)
    await journal.open()
    await journal.seek({})
    keys: Counter[str] = Counter()

    async def read(count: int) -> None:
        async with asyncio.timeout(20):
            while len(keys) < count:
                keys.update(delivery.key for delivery in await journal.poll(0.2))

    await write(world, requests(20))
    await read(20)
    assert journal._reader is not None
    kill_fetcher(journal._reader._reader)
    await write(world, requests(20, "u"))
    await read(40)
    assert set(keys.values()) == {1}
    await journal.close()


@pytest.mark.parametrize("task", ["_coordination_task", "_heartbeat_task"])
async def test_a_membership_that_dies_in_silence_is_replaced_and_handlers_stay(world: KafkaWorld, task: str) -> None:
    held = asyncio.Event()

    class Holding(Worker):
        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            self.calls[delivery.key] += 1
            await held.wait()
            return [make_trajectory(delivery)]

    await write(world, requests(20))
    worker = Holding()
    async with Process(world, make_stage("effect"), worker, IMPATIENT) as process:
        await process.until(lambda: len(worker.calls) == 20)
        membership = process.runtime._membership
        dead = membership._consumer
        getattr(dead._coordinator, task).cancel()
        await process.until(lambda: membership._consumer is not dead and membership._is_settled)
        assert len(process.runtime.lanes) == 4
        assert set(worker.calls.values()) == {1}
        assert process.runtime.counters.abandoned == 0
        async with Process(world, make_stage("effect"), Worker(), IMPATIENT) as other:
            await process.until(lambda: len(process.runtime.lanes) == 2 and len(other.runtime.lanes) == 2)
        held.set()
        await process.until(lambda: len(process.runtime.lanes) == 4)
        await process.until(lambda: process.runtime.counters.finished + other.runtime.counters.finished == 20)
    assert set((await counts(world, TRAJECTORIES)).values()) == {1}
    assert len(await counts(world, TRAJECTORIES)) == 20


class TestOwnBroker:
    """With a broker that is taken away from every kind of stage at once."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Iterator[Path]:
        with broker(tmp_path / "broker"):
            yield tmp_path / "broker"

    @pytest.mark.parametrize("condition", ["stopped", "mute"])
    @pytest.mark.alone
    async def test_sigterm_ends_every_kind_of_stage_in_time_without_an_answer(
        self, directory: Path, tmp_path: Path, condition: str
    ) -> None:
        state = running_state(directory)
        assert state is not None
        world, other = KafkaWorld(state.address), KafkaWorld(state.address)
        await asyncio.to_thread(world.create_topics)
        await asyncio.to_thread(other.create_topics)  # the stages of two kinds bear the same name
        await asyncio.to_thread(create_learner_topics, world)
        await write(world, requests(100))
        worlds = {"effect": world, "waiting-source": world, "learner": world, "reducer": other}
        async with contextlib.AsyncExitStack() as stack:
            stages = {
                kind: await stack.enter_async_context(stage_process(its, kind, folder(tmp_path, kind), handle_s=2.0))
                for kind, its in worlds.items()
            }
            await until_count(world, TRAJECTORIES, 50)
            async with asyncio.timeout(60):
                while not all(is_at_work(stage) for stage in stages.values()):
                    await asyncio.sleep(0.2)
            if condition == "mute":
                os.kill(state.pid, signal.SIGSTOP)
            else:
                await asyncio.to_thread(stop_broker, directory)
            try:
                await asyncio.sleep(1.0)
                began = time.monotonic()
                for stage in stages.values():
                    stage.send(signal.SIGTERM)
                ends = await asyncio.gather(*(ended_after(stage, began) for stage in stages.values()))
            finally:
                if condition == "mute":
                    os.kill(state.pid, signal.SIGCONT)
        took = dict(zip(stages, ends, strict=True))
        assert all(code == 0 and seconds < 15 for code, seconds in ends), took


def create_learner_topics(world: KafkaWorld) -> None:
    """Those of the topology that the small world lacks."""
    from gagar.stream.kafka.admin import Admin
    from tests.contract.world import make_run
    from topology.topics import TOPICS

    there = {topic.name for topic in WORLD_TOPICS}
    with Admin(KafkaTable(bootstrap_servers=world.servers)) as admin:
        admin.apply(make_run(world.name), [topic for topic in TOPICS if topic.name not in there])


def is_at_work(stage: StageProcess) -> bool:
    text = stage.log.read_text()
    return any(words in text for words in ("lane taken over", "source took its place", "learner started"))


async def ended_after(stage: StageProcess, began: float) -> tuple[int, float]:
    """Exit code and seconds."""
    code = await stage.ended(20)
    return code, time.monotonic() - began


def folder(tmp_path: Path, kind: str) -> Path:
    (tmp_path / kind).mkdir()
    return tmp_path / kind
