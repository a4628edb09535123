"""A real process of each kind is killed at every point from its take-over to the end of a commit, on a real broker.

Started again, it leaves what one that was never disturbed does: each record once, the same positions.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gagar.config import KafkaTable
from gagar.groups.lineage import Lineage
from gagar.stream.kafka.admin import Admin
from gagar.stream.spec import Stage, Topic
from tests.broker.stage_process import EFFECT, NUM_STEPS, NUM_UNITS, TRANSFORM
from tests.broker.stages import StageProcess, stage_process
from tests.builders import make_request
from tests.contract.counting import STAGE as SOURCE
from tests.contract.gathering import SIZE, request_groups, verdict
from tests.contract.gathering import STAGE as REDUCER
from tests.contract.world import DEAD_LETTERS, KafkaWorld, read, write
from tests.null_learner import make_group
from topology import topics
from topology.stages import LEARNER

pytestmark = pytest.mark.broker

NUM_PARTITIONS = 2
NUM_REQUESTS = 60
NUM_GROUPS = 12
NUM_TRAINED = 2 * NUM_STEPS
WAIT_S = 90.0
COMMIT = ("begin:2", "send:3", "sent:2", "commit:2", "offsets:2", "answer:2", "gap:2")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of stage, and work for it."""

    stage: Stage
    prepare: Callable[[KafkaWorld], Awaitable[Any]]
    num_outputs: int
    deaths: tuple[str, ...] = ("fenced:1", "read:1", *COMMIT)

    @property
    def topics(self) -> tuple[Topic, ...]:
        stage = self.stage
        every = (*stage.inputs, *stage.tables, *stage.outputs, *stage.references, DEAD_LETTERS)
        return tuple({topic.name: topic for topic in every}.values())


async def ask(world: KafkaWorld) -> None:
    await write(world, [make_request(f"t-{number:06d}") for number in range(NUM_REQUESTS)])


async def ask_and_judge(world: KafkaWorld) -> None:
    groups = [f"t-{number:06d}" for number in range(NUM_GROUPS)]
    refs = await request_groups(world, groups)
    await write(world, [verdict(refs, group, index) for index in range(SIZE) for group in groups])


async def assign_advantages(world: KafkaWorld) -> None:
    groups = [make_group(number) for number in range(NUM_TRAINED + 1)]
    await write(world, groups, {topics.ADVANTAGES.record: topics.ADVANTAGES})


async def nothing(world: KafkaWorld) -> None: ...


CASES = {
    "source": Case(stage=SOURCE, prepare=nothing, num_outputs=2 * NUM_UNITS),
    "transform": Case(stage=TRANSFORM, prepare=ask, num_outputs=NUM_REQUESTS),
    "effect": Case(stage=EFFECT, prepare=ask, num_outputs=2 * NUM_REQUESTS),
    "reducer": Case(stage=REDUCER, prepare=ask_and_judge, num_outputs=NUM_GROUPS),
    "learner": Case(
        stage=LEARNER,
        prepare=assign_advantages,
        num_outputs=NUM_TRAINED + 1 + NUM_STEPS + 1,
        deaths=("fenced:1", "sought:1", *COMMIT),
    ),
}


class Run:
    """One run of its own: topics, a process that dies, and one that ends the work."""

    def __init__(self, case: Case, admin: Admin, turn: asyncio.Lock, servers: str, directory: Path) -> None:
        self.world = KafkaWorld(servers, case.topics, NUM_PARTITIONS)
        self._case = case
        self._admin = admin
        self._turn = turn
        self._directory = directory
        directory.mkdir()

    async def end_after(self, kind: str, death: str) -> tuple[list[tuple[str, ...]], dict[Any, int]]:
        """What is visible at the end, and the group's offsets."""
        await self._ask(self.world.create_topics)
        await self._case.prepare(self.world)
        if death:
            async with stage_process(self.world, kind, self._directory, death) as doomed:
                assert await doomed.ended(WAIT_S) == -signal.SIGKILL
        async with stage_process(self.world, kind, self._directory) as successor:
            if self._case.stage.kind != "source":
                await self._until_done(successor)
                successor.send(signal.SIGTERM)
            assert await successor.ended(WAIT_S) == 0
        offsets = await self._ask(lambda: self._admin.committed(f"{self.world.name}.{self._case.stage.name}"))
        return await self._outputs(), {(name.split(".", 1)[1], index): offset for (name, index), offset in offsets.items()}

    async def _until_done(self, process: StageProcess) -> None:
        deadline = time.monotonic() + WAIT_S
        while not await self._is_done(process.log.read_text()):
            assert process.process.returncode is None, "the successor ended early"
            assert time.monotonic() < deadline, "the successor gets nowhere"
            await asyncio.sleep(1.0)

    async def _is_done(self, text: str) -> bool:
        """A learner: its last group has ended. Others: everything is finished, the markers at the end included. It is at work:
        a signal that comes before it can handle one would end it."""
        if "taken over" not in text and "learner started" not in text:
            return False
        if self._case.stage.kind == "learner":
            return f"g{NUM_TRAINED}" in {delivery.key for delivery in await read(self.world, topics.OUTCOMES)}
        lags = await self._ask(lambda: self._admin.lags(self.world.name, self._case.stage))
        return not any(lags.values())

    async def _outputs(self) -> list[tuple[str, ...]]:
        """Topic, group, and what tells records of a group apart; of a learner's records, those of the surviving lineage."""
        lineage, found = Lineage(), {}
        for topic in (*self._case.stage.outputs, DEAD_LETTERS):
            found[topic.name] = await read(self.world, topic)
        for delivery in found.get("policy-versions", ()):
            lineage.observe(delivery.record)
        rows = []
        for topic_name, deliveries in found.items():
            for delivery in deliveries:
                record = delivery.record
                run_id, step = getattr(record, "run_id", ""), getattr(record, "step", -1)
                if not run_id or lineage.survives(run_id, step):
                    what = [str(getattr(record, name, "")) for name in ("group_id", "sample_index", "kind", "reason", "step")]
                    rows.append((topic_name, *what))
        versions = {row for row in rows if row[0] == "policy-versions"}  # a run begins with the version it goes on from
        return sorted([row for row in rows if row not in versions] + list(versions))

    async def _ask(self, question: Callable[[], Any]) -> Any:
        async with self._turn:
            return await asyncio.to_thread(question)


@pytest.mark.parametrize("kind", CASES)
async def test_a_process_killed_anywhere_loses_and_doubles_nothing(kafka_servers: str, tmp_path: Path, kind: str) -> None:
    case, turn = CASES[kind], asyncio.Lock()
    deaths = ["", *case.deaths]
    with Admin(KafkaTable(bootstrap_servers=kafka_servers)) as admin:
        runs = [Run(case, admin, turn, kafka_servers, tmp_path / (death or "undisturbed")) for death in deaths]
        ends = await asyncio.gather(*(run.end_after(kind, death) for run, death in zip(runs, deaths, strict=True)))
    undisturbed = ends[0]
    assert len(undisturbed[0]) == len(set(undisturbed[0])) == case.num_outputs
    for death, end in zip(deaths, ends, strict=True):
        assert end == undisturbed, f"{kind} killed at {death}"
