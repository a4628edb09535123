"""The chain under the bench: its topics, its stage processes, groups asked of it, and when their records became visible."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gagar.broker.address import BrokerState
from gagar.config import KafkaTable
from gagar.records import RolloutRequest, encode
from gagar.stream.kafka.admin import Admin
from gagar.stream.kafka.client import KafkaTransport
from gagar.stream.kafka.initial_offsets import commit_initial_offsets
from gagar.stream.readers.scans import scan_transport
from gagar.stream.spec import Topic
from gagar.stream.transport import Producer, Send
from tests.bench.processes import Child, children
from tests.builders import make_request
from tests.contract.world import make_run
from topology.stages import STAGES
from topology.topics import OUTCOMES, ROLLOUT_REQUESTS, TOPICS, VERDICTS

GROUP_SIZE = 8
NAMES = tuple(stage.name for stage in STAGES if stage.name != "sampler")
WARM_GROUPS = 16
"""That every partition of every stage has worked before a clock starts."""
MAX_WAIT_S = 900.0
WARM_S = 120.0
POLL_S = 0.25


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The broker under the bench."""

    state: BrokerState
    directory: Path

    def create_topics(self, name: str) -> None:
        """Those of the topology, for a run of that name."""
        with Admin(KafkaTable(bootstrap_servers=self.state.address)) as admin:
            admin.apply(make_run(name), TOPICS)
            commit_initial_offsets(admin, make_run(name), STAGES)

    def stored_bytes(self, name: str) -> int:
        """Bytes of the run's records on the broker's disk, all topics together."""
        logs = (self.directory / "data").glob(f"{name}.*/*.log")
        return sum(path.stat().st_size for path in logs)

    @contextmanager
    def stages(self, name: str, stages: Collection[str] = NAMES) -> Iterator[dict[str, Child]]:
        """Null stages of the run, by name."""
        commands = {stage: ["-m", "tests.bench.null_stage", self.state.address, name, stage] for stage in stages}
        with children(self.directory, commands) as started:
            yield started


class Driver:
    """Asks for groups as the sampler would, and watches what becomes of them."""

    def __init__(self, transport: KafkaTransport, producer: Producer) -> None:
        self._transport = transport
        self._producer = producer
        self.num_groups = 0

    async def request(self, num_groups: int) -> None:
        """Asks for that many more groups, in one transaction."""
        await self._producer.begin()
        answers = [await self._producer.send(_send(request)) for request in self._next(num_groups)]
        for answer in answers:
            await answer
        await self._producer.commit("driver", {})

    def _next(self, num_groups: int) -> list[RolloutRequest]:
        numbers = range(self.num_groups, self.num_groups + num_groups)
        self.num_groups += num_groups
        return [
            make_request(
                f"t-{number:06d}",
                index,
                group_size=GROUP_SIZE,
                seed=number * GROUP_SIZE + index,
                deadline_s=3600.0,
            )
            for number in numbers
            for index in range(GROUP_SIZE)
        ]

    async def watch(self, topic: Topic, seen: dict[str, float], count: int) -> None:
        """Notes when the first record of each group became visible, until there are `count` groups."""
        async with aclosing(scan_transport(self._transport, [topic], follow=True)) as deliveries:
            async for delivery in deliveries:
                seen.setdefault(delivery.key, time.time())
                if len(seen) >= count:
                    return

    async def last_verdicts(self) -> dict[str, float]:
        """When the last verdict of each group was sent."""
        sent: dict[str, float] = {}
        async for delivery in scan_transport(self._transport, [VERDICTS]):
            sent[delivery.key] = max(delivery.at, sent.get(delivery.key, 0.0))
        return sent


@asynccontextmanager
async def driver(cluster: Cluster, name: str) -> AsyncIterator[Driver]:
    """A driver of the run, for the length of a `with`."""
    transport = KafkaTransport(KafkaTable(bootstrap_servers=cluster.state.address), name)
    await transport.open()
    try:
        producer = await transport.start_producer("driver", [ROLLOUT_REQUESTS])
        try:
            yield Driver(transport, producer)
        finally:
            await producer.close()
    finally:
        await transport.close()


def _send(request: RolloutRequest) -> Send:
    return Send(topic=ROLLOUT_REQUESTS.name, key=request.group_id.encode(), value=encode(request))


async def finished(work: Coroutine[Any, Any, None], stages: Collection[Child], timeout_s: float = MAX_WAIT_S) -> None:
    """Waits for `work`; raises AssertionError as soon as a stage has died, TimeoutError if nothing comes of it."""
    task = asyncio.create_task(work)
    try:
        async with asyncio.timeout(timeout_s):
            while not task.done():
                await asyncio.wait([task], timeout=POLL_S)
                for stage in stages:
                    stage.check()
        task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def warm_up(asking: Driver, stages: Collection[Child]) -> None:
    """A few groups through the chain."""
    await asking.request(WARM_GROUPS)
    await finished(asking.watch(OUTCOMES, {}, asking.num_groups), stages, WARM_S)
