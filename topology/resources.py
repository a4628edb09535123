"""What the stages of one run share: paths, tasks, ways into the log. Each is made when it is first asked for."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path

import msgspec

from gagar.broker.address import cluster_now
from gagar.config import DRAIN_S, Run, convert
from gagar.stream.journal import LogJournal
from gagar.stream.limits import RuntimeLimits
from gagar.stream.readers.references import LogReferences
from gagar.stream.spec import Stage
from gagar.stream.transport import Transport
from gagar.tasks.kinds import Tasks, TasksTable
from topology.topics import DEAD_LETTERS, TOPICS


class Resources:
    """The run as a stage's `make` sees it. `transport` makes a way into the log: Kafka's, unless a test gives another."""

    def __init__(self, run: Run, transport: Callable[[], Transport] | None = None) -> None:
        self.run = run
        self.member = ""
        """Name of this process in its consumer group, if it has one: then a restart within the session's time moves nothing."""
        self.transport = transport or self._kafka

    @property
    def policy_path(self) -> Path:
        """Directory of the initial policy."""
        return self.run.resolve(self.run.policy.path)

    @cached_property
    def tasks(self) -> Tasks:
        """The tasks of the run; raises ConfigError if they cannot be read."""
        table: TasksTable = convert("tasks", self.run.tables.get("tasks", {}), TasksTable)
        return table.make(self.run.resolve)

    def journal(self, stage: Stage) -> LogJournal:
        """A way into the log by positions of the reader's own, not yet connected."""
        return LogJournal(stage, self.transport(), DEAD_LETTERS, self.limits(), self.run.kafka.num_partitions)

    def limits(self, drain_s: float = DRAIN_S) -> RuntimeLimits:
        """Of the runtime, as the run file sets them."""
        settings = msgspec.structs.asdict(self.run.stream)
        return RuntimeLimits(**settings, transaction_timeout_s=self.run.kafka.transaction_timeout_s, drain_s=drain_s)

    def references(self) -> LogReferences:
        """Reads by reference in any topic, not yet connected."""
        return LogReferences(self.transport(), [topic for topic in TOPICS if topic.is_grouped], owns_transport=True)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Transport]:
        """A way into the log, open for the length of a `with`."""
        transport = self.transport()
        await transport.open()
        try:
            yield transport
        finally:
            await transport.close()

    def _kafka(self) -> Transport:
        from gagar.stream.kafka.client import KafkaTransport

        return KafkaTransport(cluster_now(self.run), self.run.run.name, self.member)
