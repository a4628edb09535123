"""One world for both transports: topics, processes, and what lies in the log at the end."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gagar import records
from gagar.config import KafkaTable, PolicyTable, Run, RunTable, TrainingTable
from gagar.records import LogRef, Record, encode
from gagar.stream.handlers import Delivery
from gagar.stream.lanes.frontier import AT_START
from gagar.stream.limits import RuntimeLimits
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.readers.scans import scan_transport
from gagar.stream.routing import key_of
from gagar.stream.runtime import StageRuntime
from gagar.stream.spec import Stage, Topic
from gagar.stream.transport import Committed, Membership, Partition, Send, Transport
from topology.stages import STAGES

if TYPE_CHECKING:
    from gagar.stream.kafka.admin import Admin

REQUESTS = Topic(name="rollout-requests", record=records.RolloutRequest, kept="by time")
VERDICTS = Topic(name="verdicts", record=records.Verdict, kept="by time")
TRAJECTORIES = Topic(name="trajectories", record=records.Trajectory, kept="by time")
TOKENS = Topic(name="trajectory-tokens", record=records.TrajectoryTokens, kept="by bytes", max_record_bytes=4 << 20)
OUTCOMES = Topic(name="outcomes", record=records.Outcome, kept="compacted")
VERSIONS = Topic(name="policy-versions", record=records.PolicyVersion, kept="compacted", is_grouped=False)
DEAD_LETTERS = Topic(name="dead-letters", record=records.DeadLetter, kept="by time", max_record_bytes=8 << 20)
TOPICS = (REQUESTS, VERDICTS, TRAJECTORIES, TOKENS, OUTCOMES, VERSIONS, DEAD_LETTERS)
NUM_PARTITIONS = 4

FAST = RuntimeLimits(
    backoff_s=0.02,
    max_backoff_s=0.5,
    drain_s=0.5,
    close_s=2.0,
    revoke_s=1.0,
    handover_s=0.0,
    tick_s=0.05,
    commit_gap_s=0.005,
)


class World(Protocol):
    """A cluster with the topics above, empty."""

    def transport(self, member: str = "") -> Transport:
        """A way into it, for one more process of that name, if it has one; not yet open."""

    async def grow(self, topic: str, num_partitions: int) -> None:
        """An operator adds partitions to a topic, up to that number."""

    async def remake(self, topic: Topic) -> None:
        """An operator deletes a topic and makes it anew, as it was."""


class MemoryWorld:
    """In memory."""

    def __init__(self, num_partitions: int = NUM_PARTITIONS) -> None:
        self.log = MemoryLog(TOPICS, num_partitions)

    def transport(self, member: str = "") -> MemoryTransport:
        return MemoryTransport(self.log, member)

    async def grow(self, topic: str, num_partitions: int) -> None:
        self.log.grow(topic, num_partitions)

    async def remake(self, topic: Topic) -> None:
        self.log.remake(topic.name)


class KafkaWorld:
    """On a broker, under a name of its own."""

    def __init__(self, servers: str, topics: Sequence[Topic] = TOPICS, num_partitions: int = NUM_PARTITIONS) -> None:
        self.servers = servers
        self.kafka = KafkaTable(bootstrap_servers=servers)
        self.topics = topics
        self.num_partitions = num_partitions
        self.name = f"t{uuid.uuid4().hex[:12]}"

    def transport(self, member: str = "") -> Transport:
        from gagar.stream.kafka.client import KafkaTransport

        return KafkaTransport(self.kafka, self.name, member)

    def create_topics(self) -> None:
        from gagar.stream.kafka.admin import Admin

        with Admin(self.kafka) as admin:
            run = make_run(self.name, num_partitions=self.num_partitions)
            admin.apply(run, self.topics)
            commit_zeros(admin, run, self.topics)

    async def grow(self, topic: str, num_partitions: int) -> None:
        await asyncio.to_thread(self._grow, f"{self.name}.{topic}", num_partitions)

    async def remake(self, topic: Topic) -> None:
        await asyncio.to_thread(self._remake, topic)

    def _grow(self, name: str, num_partitions: int) -> None:
        from gagar.stream.kafka.admin import Admin

        with Admin(self.kafka) as admin:
            admin._client.create_partitions({name: num_partitions})
            while len(admin._partitions([name])[name]) < num_partitions:  # a broker's answer comes before all it tells of it
                time.sleep(0.1)

    def _remake(self, topic: Topic) -> None:
        from gagar.stream.kafka.admin import Admin

        name = f"{self.name}.{topic.name}"
        with Admin(self.kafka) as admin:
            admin._client.delete_topics([name])
            while admin._partitions([name]):
                time.sleep(0.1)
            admin.apply(make_run(self.name, num_partitions=self.num_partitions), [topic])


def commit_zeros(admin: "Admin", run: Run, topics: Sequence[Topic]) -> None:
    """Initial offsets of whatever stage a test may start."""
    counts = {run.topic(topic.name): topic.count_partitions(run.kafka.num_partitions) for topic in topics}
    offsets = {(name, number): 0 for name, count in counts.items() for number in range(count)}
    for group in ("under-test", "asker", "attempter", "reader", *(stage.name for stage in STAGES)):
        admin.commit(run.topic(group), offsets, AT_START)


def make_run(name: str = "t", servers: str = "", directory: str = "unused", num_partitions: int = NUM_PARTITIONS) -> Run:
    return Run(
        run=RunTable(name=name, dir=directory),
        kafka=KafkaTable(num_partitions=num_partitions, bootstrap_servers=servers),
        policy=PolicyTable(path="unused"),
        training=TrainingTable(),
        tables={"tasks": {"train": {"path": "unused"}, "heldout": {"path": "unused"}}},
        root="/",
    )


def make_stage(kind: Any, inputs: Sequence[Topic] = (REQUESTS,), **fields: Any) -> Stage:
    defaults: dict[str, Any] = {"outputs": (TRAJECTORIES, TOKENS, OUTCOMES), "name": "under-test", "module": "none"}
    return Stage(kind=kind, inputs=tuple(inputs), **{**defaults, **fields})


def make_trajectory(delivery_or_request: Any, **fields: Any) -> records.Trajectory:
    request = getattr(delivery_or_request, "record", delivery_or_request)
    ref = getattr(delivery_or_request, "ref", LogRef(topic="rollout-requests", partition=0, offset=0))
    facts: dict[str, Any] = {"request": ref, "tokens": None, "status": "completed"}
    facts |= {name: fields.pop(name) for name in records.AttemptFacts.__struct_fields__ if name in fields}
    defaults: dict[str, Any] = {"purpose": "training", "task_id": request.task_id, "attempt": records.AttemptFacts(**facts)}
    return records.Trajectory(group_id=request.group_id, sample_index=request.sample_index, **{**defaults, **fields})


def make_tokens(request: Any, num_tokens: int = 4) -> records.TrajectoryTokens:
    import numpy as np

    from gagar.arrays import Tensor

    return records.TrajectoryTokens(
        group_id=request.group_id,
        sample_index=request.sample_index,
        token_ids=Tensor.of(np.arange(num_tokens, dtype="<i4")),
        loss_mask=Tensor.of(np.ones(num_tokens, dtype="u1")),
        behaviour_logprobs=Tensor.of(np.full(num_tokens, -0.5, dtype="<f4")),
        policy_versions=Tensor.of(np.zeros(num_tokens, dtype="<i4")),
    )


@contextlib.asynccontextmanager
async def opened(world: World) -> AsyncIterator[Transport]:
    """A transport, open for the length of a `with`."""
    transport = world.transport()
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


async def write(world: World, entries: Sequence[Record | Send], topic_of: dict[type, Topic] | None = None) -> None:
    """Writes records (to the topic of their type) or raw sends, in one transaction."""
    topic_of = topic_of or {topic.record: topic for topic in TOPICS}
    async with opened(world) as transport:
        producer = await transport.start_producer("writer", TOPICS)
        await producer.begin()
        answers = []
        for entry in entries:
            send = entry
            if not isinstance(entry, Send):
                send = Send(topic=topic_of[type(entry)].name, key=key_of(entry).encode(), value=encode(entry))
            assert isinstance(send, Send)
            answers.append(await producer.send(send))
        for answer in answers:
            await answer
        await producer.commit("writer", {})
        await producer.close()


async def read(world: World, topic: Topic) -> list[Delivery[Any]]:
    """All committed records of a topic."""
    async with opened(world) as transport:
        return [delivery async for delivery in scan_transport(transport, [topic])]


class Process:
    """A stage at work in this process, stopped in good order by `stop` or at the end of the `with`."""

    def __init__(self, world: World, stage: Stage, handler: Any, limits: RuntimeLimits = FAST, member: str = "") -> None:
        self.transport = world.transport(member)
        self.runtime: Any = StageRuntime(stage, handler, self.transport, DEAD_LETTERS, limits)
        self.stopping = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._is_over = False
        """Its end was waited for, and what it raised was raised there."""

    async def __aenter__(self) -> "Process":
        await self.transport.open()
        self.task = asyncio.create_task(self.runtime.run(self.stopping))
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            if error[0] is None and not self._is_over:
                await self.stop()
        finally:
            assert self.task is not None
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            await self.transport.close()

    async def stop(self) -> None:
        assert self.task is not None
        self.stopping.set()
        await asyncio.wait_for(self.task, 15)

    async def ended(self) -> None:
        """Until it ends by itself; raises what it raised."""
        assert self.task is not None
        try:
            await asyncio.wait_for(asyncio.shield(self.task), 20)
        finally:
            self._is_over = self.task.done()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Until `condition` holds; what ends the stage before is raised."""
        assert self.task is not None
        async with asyncio.timeout(timeout_s):
            while not condition():
                if self.task.done():
                    self.task.result()
                    raise AssertionError("the stage ended early")
                await asyncio.sleep(0.01)

    async def until_finished(self, count: int, timeout_s: float = 20.0) -> None:
        await self.until(lambda: self.runtime.counters.finished >= count, timeout_s)


@contextlib.asynccontextmanager
async def joined(transport: Transport, stage: Stage) -> AsyncIterator[Membership]:
    """A member of the stage's consumer group that does nothing, for the length of a `with`."""

    class Nobody:
        async def on_revoked(self) -> None: ...

        def on_assigned(self, numbers: frozenset[int], /) -> None: ...

    membership = transport.join(stage.name, stage.inputs, Nobody())
    task = asyncio.create_task(membership.run())
    try:
        await membership.confirm()
        yield membership
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await membership.close()


async def committed(world: World, stage: Stage) -> dict[Partition, Committed]:
    """The group's offsets, as its next owner would read them."""
    async with opened(world) as transport, joined(transport, stage) as membership:
        return await membership.committed([Partition(topic.name, n) for topic in stage.inputs for n in range(NUM_PARTITIONS)])
