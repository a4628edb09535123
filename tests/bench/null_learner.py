"""The learner with nothing to learn: groups from the journal, their tokens by reference, outcomes in transactions.

As in the real one, tokens are read while the step before is written, and a step's outcomes are one transaction.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from gagar.config import Run
from gagar.processes.forced_end import stop_event
from gagar.records import GroupAdvantages, Outcome, TrajectoryTokens
from gagar.stream.handlers import Delivery
from gagar.stream.journal import Journal
from gagar.stream.together import together, until
from topology.resources import Resources
from topology.stages import LEARNER

GROUPS_PER_STEP = 8
AHEAD = 16
"""Groups that are read before their step."""
IDLE_S = 0.2


class NullLearner:
    """One run of it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._chosen: asyncio.Queue[Delivery[GroupAdvantages]] = asyncio.Queue()
        self._read: list[Delivery[GroupAdvantages]] = []
        self._num_ahead = 0
        self._positions: dict[int, int] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._journal.open()
        await self._journal.seek({})
        await together(self._load(), self._step())

    async def _load(self) -> None:
        while True:
            delivery = await self._chosen.get()
            members = delivery.record.members
            records = await self._journal.references.read(
                [member.attempt.sampled_tokens() for member in members], TrajectoryTokens
            )
            if {record.group_id for record in records} != {delivery.record.group_id}:
                raise AssertionError(f"{delivery.ref}: expected tokens of {delivery.record.group_id}")
            self._read.append(delivery)

    async def _step(self) -> None:
        while True:
            if self._num_ahead < AHEAD:
                for delivery in await self._journal.poll(IDLE_S if self._num_ahead == 0 else 0.0):
                    self._chosen.put_nowait(delivery)
                    self._num_ahead += 1
            if len(self._read) >= GROUPS_PER_STEP or (self._read and len(self._read) == self._num_ahead):
                batch, self._read = self._read[:GROUPS_PER_STEP], self._read[GROUPS_PER_STEP:]
                await self._commit(batch)
            elif self._num_ahead:
                await asyncio.sleep(0.005)

    async def _commit(self, batch: Sequence[Delivery[GroupAdvantages]]) -> None:
        for delivery in batch:
            self._positions[delivery.ref.partition] = delivery.ref.offset + 1
        outputs: list[Any] = [
            Outcome(
                group_id=delivery.record.group_id,
                task_id=delivery.record.task_id,
                purpose="training",
                kind="trained",
                run_id="bench",
                step=1,
            )
            for delivery in batch
        ]
        await self._journal.commit(outputs, self._positions)
        self._num_ahead -= len(batch)


async def learn(run: Run) -> None:
    """Until SIGTERM."""
    stop = stop_event()
    journal = Resources(run).journal(LEARNER)
    try:
        await until(stop, NullLearner(journal).run())
    finally:
        await journal.close()
