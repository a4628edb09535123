"""The rest of a run as the sampler sees it: so slow that one that is killed again and again sees what one that is not does.

In: what has been asked for. Out: outcomes and policy versions, written only when the sampler has asked for all that was due
before. A learner goes back to a checkpoint once on the way.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from gagar.config import TrainingTable
from gagar.records import LineageEntry, Outcome, PolicyVersion, Record, RolloutRequest, decode, encode
from gagar.stream.memory.transport import MemoryLog
from gagar.stream.routing import key_of
from gagar.stream.transport import Partition, Send
from producers.sampler import Sampler
from tests.builders import make_outcome, make_version
from tests.contract.world import OUTCOMES, REQUESTS, VERSIONS, World, read, write

TRAINING = TrainingTable(
    group_size=2,
    groups_per_step=2,
    max_staleness=1,
    evaluation_group_size=2,
    evaluate_every=2,
    num_steps=4,
    rollout_deadline_s=60.0,
    agent_timeout_s=30.0,
)
TRAIN = [f"train-{number}" for number in range(5)]
HELDOUT = ["held-0", "held-1", "held-2"]
BACK_AT = 3
"""Step after which the learner goes back, once, to the one before."""


def make_sampler() -> Sampler:
    return Sampler(TRAINING, 7, TRAIN, HELDOUT)


class Log(Protocol):
    """What the rest of the run needs of the log."""

    async def write(self, records: Sequence[Record]) -> None: ...

    async def requested(self) -> list[RolloutRequest]:
        """In the order of the log; there is one partition."""


class WorldLog:
    """Of any world."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def write(self, records: Sequence[Record]) -> None:
        await write(self._world, records)

    async def requested(self) -> list[RolloutRequest]:
        return [delivery.record for delivery in await read(self._world, REQUESTS)]


class InstantLog:
    """In memory, without a task of its own."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def write(self, records: Sequence[Record]) -> None:
        for record in records:
            topic = OUTCOMES if isinstance(record, Outcome) else VERSIONS
            self._log.append(Send(topic=topic.name, key=key_of(record).encode(), value=encode(record)))

    async def requested(self) -> list[RolloutRequest]:
        found, _ = self._log.visible(Partition(REQUESTS.name, 0), 0, 1 << 30)
        return [decode(RolloutRequest, raw.value or b"") for raw in found]


def facts(requests: Sequence[RolloutRequest]) -> list[Any]:
    """All but the times, and the step of training requests: which version the sampler has seen by then is chance."""
    return [
        (r.group_id, r.sample_index, r.group_size, r.task_id, r.seed, r.purpose, r.purpose == "training" or r.step)
        for r in requests
    ]


class Rest:
    """See the module. `run` returns after the planned end."""

    def __init__(self, log: Log, pause_s: float = 0.2) -> None:
        self._log = log
        self._pause_s = pause_s
        self._num_due = 0
        """Groups that the sampler must have asked for."""
        self._num_ended = 0
        self._version = make_version(0)

    async def run(self) -> None:
        size = TRAINING.groups_per_step
        await self._publish(self._version, num_due=len(HELDOUT) + (TRAINING.max_staleness + 1) * size)
        for step in range(1, TRAINING.num_steps + 1):
            await self._train(step)
            if step == BACK_AT:
                lineage = [LineageEntry(run_id="a", last_step=step - 1)]
                await self._publish(make_version(step - 1, "b", lineage=lineage))
                self._num_ended -= size
                await self._train(step)
        run_id, step = self._version.run_id, TRAINING.num_steps + 1
        groups = range(self._num_ended, self._num_ended + TRAINING.max_staleness * size)
        await self._write(
            [make_outcome(f"t-{number:06d}", "dropped", reason="ended", run_id=run_id, step=step) for number in groups]
        )

    async def _train(self, step: int) -> None:
        """A version, then the round that it makes due, then the places that its groups free."""
        size, is_last = TRAINING.groups_per_step, step == TRAINING.num_steps
        version = make_version(step, self._version.run_id, lineage=self._version.lineage, is_last=is_last)
        is_due = (is_last or step % TRAINING.evaluate_every == 0) and step > self._version.step
        await self._publish(version, num_due=len(HELDOUT) if is_due else 0)
        groups = range(self._num_ended, self._num_ended + size)
        self._num_ended += size
        is_again = version.run_id == "b" and step == BACK_AT
        await self._write(
            [make_outcome(f"t-{number:06d}", "trained", run_id=version.run_id, step=step) for number in groups],
            num_due=0 if is_last or is_again else size,
        )

    async def _publish(self, version: PolicyVersion, num_due: int = 0) -> None:
        self._version = version
        await self._write([version], num_due)
        rounds = {r.group_id for r in await self._log.requested() if r.purpose == "evaluation" and r.step == version.step}
        await self._write([make_outcome(name, "evaluated", step=version.step) for name in sorted(rounds)])

    async def _write(self, records: Sequence[Record], num_due: int = 0) -> None:
        """Writes, and waits until the sampler has asked for `num_due` groups more, and a moment longer."""
        await self._log.write(records)
        self._num_due += num_due
        while len({request.group_id for request in await self._log.requested()}) < self._num_due:
            await asyncio.sleep(self._pause_s)
        await asyncio.sleep(self._pause_s)
