"""The runtime of sources: there is one that acts, the owner of partition 0 of the stage's first table; the others wait.

In: the tables, whole and followed. Out: the records of each unit in one transaction, with the cursor after them in the metadata
of the group's offset of that partition. Kept: the cursor, there.

A source that lost its place ends with an error and is started anew: what it knows may be stale. One whose transaction has an
unknown outcome starts its producer again and looks at the committed cursor: that is the truth.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

from gagar.errors import FencedError, GagarError, UnavailableError
from gagar.stream.handlers import Source
from gagar.stream.lanes.committing import RefusedUnitError, transact
from gagar.stream.lanes.frontier import Frontier
from gagar.stream.lanes.units import LinkedSend, Unit
from gagar.stream.limits import Counters, RuntimeLimits, log_counts
from gagar.stream.loop_monitor import LoopMonitor
from gagar.stream.readers.tables import TableFollower
from gagar.stream.routing import Router
from gagar.stream.runtime import check_topics
from gagar.stream.spec import Stage, Topic
from gagar.stream.together import bounded, together, until
from gagar.stream.transport import Committed, Membership, Partition, Producer, RawRecord, Send, Transport

log = logging.getLogger(__name__)


class SourceRuntime:
    """See the module. `run` returns after `stop` is set or at the planned end."""

    def __init__(
        self, stage: Stage, source: Source, transport: Transport, dead_letters: Topic, limits: RuntimeLimits | None = None
    ) -> None:
        self.counters = Counters()
        self._stage = stage
        self._source = source
        self._transport = transport
        self._limits = limits or RuntimeLimits()
        self._router = Router(stage, dead_letters)
        self._home = Partition(stage.tables[0].name, 0)
        self._tables = TableFollower(stage.name, transport, stage.tables, source.observe, self._limits)
        self._owns = asyncio.Event()
        self._lost = asyncio.Event()
        self._done = asyncio.Event()
        self._membership: Membership | None = None
        self._producer: Producer | None = None
        self._cursor = b""
        self._is_acting = False
        self._num_failures = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set or nothing is due ever again."""
        await check_topics(self._transport, self._stage, self._router)
        membership = self._membership = self._transport.join(self._stage.name, self._stage.tables[:1], self)
        monitor = LoopMonitor(self._stage.name, self.counters)
        monitor.start()
        try:
            serving = together(membership.run(), self._act(), self._watch(), log_counts(self._stage.name, self.counters))
            await until(stop, until(self._done, serving))
        finally:
            monitor.stop()
            await bounded(self._close(), self._limits.close_s)
            await bounded(membership.close(), self._limits.close_s / 2)
            log.info("stage ended stage=%s %s", self._stage.name, self.counters.line())

    @property
    def has_joined(self) -> bool:
        """Whether it is a member of the stage's group: before that nothing is in work."""
        return self._membership is not None

    async def on_revoked(self) -> None:
        """Owner: a transaction in progress is fenced if the place goes elsewhere."""

    def on_assigned(self, numbers: frozenset[int]) -> None:
        """Owner: acts, or waits for its turn."""
        if 0 in numbers:
            self._owns.set()
        else:
            self._owns.clear()
            if self._is_acting:
                self._lost.set()
        log.info("partitions assigned stage=%s numbers=%s", self._stage.name, sorted(numbers))

    async def _watch(self) -> None:
        await self._lost.wait()
        raise FencedError(f"stage {self._stage.name}: expected to keep its place, got a rebalance; start it again")

    async def _act(self) -> None:
        await self._owns.wait()
        self._is_acting = True
        while not await self._attempt(self._start_producer()):
            pass
        self._source.restore(self._cursor)
        try:
            await self._tables.load()
            await together(self._tables.follow(), self._produce())
        except (FencedError, UnavailableError):
            raise
        except GagarError as error:
            if await self._committed_cursor() != self._cursor:  # so the tables tell of a successor's records
                raise self._lost_place() from error
            raise

    async def _produce(self) -> None:
        while True:
            self._tables.changed.clear()
            unit = self._source.next_unit(time.time())
            if unit is not None:
                outputs, cursor = unit
                await self._publish(self._router.encode_all(outputs), cursor)
                await asyncio.sleep(self._limits.commit_gap_s)
            elif self._source.is_done:
                log.info("planned end stage=%s", self._stage.name)
                self._done.set()
                return
            else:
                await bounded(self._tables.changed.wait(), self._limits.tick_s)

    async def _publish(self, outputs: list[Send | LinkedSend], cursor: bytes) -> None:
        """One unit, once: after an unknown outcome the committed cursor says whether it is there."""
        before = self._cursor
        if cursor == before:
            raise GagarError(f"stage {self._stage.name}: expected a cursor that moves with each unit, got {cursor!r} again")
        while self._cursor == before:
            await self._attempt(self._transact(outputs, cursor))
        if self._cursor != cursor:
            raise self._lost_place()
        self.counters.finished += 1
        self.counters.delivered += len(outputs)

    async def _attempt(self, step: Coroutine[Any, Any, None]) -> bool:
        """Whether the step succeeded; if the log failed, the producer is closed and the next step begins with a new one."""
        try:
            await step
        except (UnavailableError, FencedError) as error:
            self._num_failures += 1
            log.warning("source interrupted stage=%s failures=%d error=%s", self._stage.name, self._num_failures, error)
            await self._close_producer()
            await asyncio.sleep(self._limits.backoff(self._num_failures))
            return False
        self._num_failures = 0
        return True

    async def _transact(self, outputs: list[Send | LinkedSend], cursor: bytes) -> None:
        before = self._cursor
        if self._producer is None:
            await self._start_producer()
        if self._cursor != before or self._producer is None:
            return
        offset, metadata = Frontier(0, note=cursor).snapshot()
        source = RawRecord(at=self._home, offset=0, key=b"", value=None, time=0.0)
        offsets = {self._home: Committed(offset=offset, metadata=metadata)}
        unit = Unit(inputs=(), outputs=outputs, source=source)
        timeout_s = self._limits.transaction_timeout_s
        try:
            await transact(self._producer, self._router, [unit], self._stage.name, offsets, timeout_s)
        except RefusedUnitError as error:
            raise GagarError(f"stage {self._stage.name}: expected outputs that the log takes, got {error}") from error
        self._cursor = cursor
        self.counters.transactions += 1

    async def _start_producer(self) -> None:
        """Fences every other, then reads the cursor."""
        assert self._membership is not None
        while True:
            if 0 in await self._membership.confirm():
                break
            await asyncio.sleep(self._limits.backoff(1))
        self._producer = await self._transport.start_producer(f"{self._stage.name}.0", self._router.outputs)
        self._cursor = await self._committed_cursor()
        self.counters.takeovers += 1
        log.info("source took its place stage=%s cursor_bytes=%d", self._stage.name, len(self._cursor))

    async def _committed_cursor(self) -> bytes:
        assert self._membership is not None
        committed = (await self._membership.committed([self._home]))[self._home]
        return Frontier.restore(committed.offset, committed.metadata).note

    def _lost_place(self) -> FencedError:
        return FencedError(f"stage {self._stage.name}: expected its own cursor, got another's; start it again")

    async def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()

    async def _close(self) -> None:
        await self._close_producer()
        await self._tables.close()
