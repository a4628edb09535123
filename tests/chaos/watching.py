"""How far a run is: its outcomes and policy versions, followed while everything else is shot at."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gagar.config import KafkaTable
from gagar.groups.lineage import Lineage
from gagar.records import Outcome, PolicyVersion, Record
from gagar.stream.kafka.client import KafkaTransport
from gagar.stream.limits import RuntimeLimits
from gagar.stream.readers.tables import TableFollower
from topology.topics import OUTCOMES, POLICY_VERSIONS


class Progress:
    """Which groups have ended, as the surviving lineage has it."""

    def __init__(self) -> None:
        self._lineage = Lineage()
        self._steps: dict[str, tuple[str, int]] = {}
        """By group, run and step of its newest outcome."""

    def observe(self, record: Record) -> None:
        if isinstance(record, PolicyVersion):
            self._lineage.observe(record)
        elif isinstance(record, Outcome):
            self._steps[record.group_id] = (record.run_id, record.step)

    @property
    def num_ended(self) -> int:
        return sum(not run_id or self._lineage.survives(run_id, step) for run_id, step in self._steps.values())

    @property
    def newest_at(self) -> float:
        """When the newest policy version was made: a learner that has begun has made one."""
        return self._lineage.newest.created_at if self._lineage.newest else 0.0


@asynccontextmanager
async def watching(servers: str, name: str) -> AsyncIterator[Progress]:
    """A run's progress, kept up to date for the length of a `with`, whatever becomes of the broker."""
    progress = Progress()
    transport = KafkaTransport(KafkaTable(bootstrap_servers=servers), name)
    await transport.open()
    tables = TableFollower("chaos", transport, [OUTCOMES, POLICY_VERSIONS], progress.observe, RuntimeLimits())

    async def follow() -> None:
        await tables.load()
        await tables.follow()

    task = asyncio.create_task(follow())
    try:
        yield progress
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await tables.close()
        await transport.close()
