"""The learner's way into the log: reads its input by positions that it keeps itself, writes in transactions.

In: the stage's input topics from given offsets. Out: outputs and, for lag only, the group's offsets. Kept: nothing; the
positions live in the learner's checkpoints.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gagar.errors import BadRecordError, GagarError, UnavailableError
from gagar.health.vitals import Phase, Vitals
from gagar.records import LogRef
from gagar.stream.handlers import Delivery, Output, References
from gagar.stream.lanes.committing import RefusedUnitError, transact
from gagar.stream.lanes.reading import report_missing
from gagar.stream.lanes.units import Unit
from gagar.stream.limits import Counters, DeadLetterLimits, RuntimeLimits
from gagar.stream.loop_monitor import LoopMonitor
from gagar.stream.pinned_topics import PinnedTopics
from gagar.stream.readers.references import LogReferences
from gagar.stream.readers.scans import scan_transport
from gagar.stream.readers.watched import WatchedReader, partitions_of
from gagar.stream.routing import Router
from gagar.stream.spec import Stage, Topic
from gagar.stream.together import gathered
from gagar.stream.transport import Committed, OutOfRangeError, Partition, Producer, RawRecord, Transport

log = logging.getLogger(__name__)

POLL_RECORDS = 64


class Journal(Protocol):
    """See the module."""

    references: References

    @property
    def input_id(self) -> str:
        """Id of the input topic, from `connect` on: positions belong to it. Empty if the log tells none."""

    async def connect(self) -> None:
        """The way into the log, and no more: tables can be read, a predecessor goes on. Raises UnavailableError."""

    async def open(self) -> None:
        """Connects if that has not been done, and starts the transactional producer `<run>.<stage>.0`: fences a predecessor.
        Raises UnavailableError."""

    async def seek(self, positions: Mapping[int, int]) -> None:
        """Partition -> next offset; 0 for those left out."""

    async def poll(self, timeout_s: float) -> list[Delivery[Any]]:
        """The next input records, decoded and bounded in number; bad ones have been dead-lettered, with their outcomes. None
        while the log cannot be read. Raises GagarError if records of a topic kept with the run are gone, and UnavailableError
        if a dead letter could not be written. One that raised, or was cancelled, may have taken records along: only a new start
        from a checkpoint is sound."""

    async def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> None:
        """One transaction: outputs and the group's offsets. Raises FencedError when a successor has taken over, and
        UnavailableError if the log failed: then its outcome is unknown, and only a new start from a checkpoint is sound."""

    async def read_table(self, topic: Topic, observe: Callable[[Any], None]) -> None:
        """Calls `observe` with each record of a (compacted) topic up to its present end, in log order; tombstones are left
        out. None is kept: a topic grows with the run."""

    async def close(self) -> None: ...


class LogJournal:
    """`Journal` over a transport. Not for several tasks at once but for `references`."""

    def __init__(
        self,
        stage: Stage,
        transport: Transport,
        dead_letters: Topic,
        limits: RuntimeLimits | None = None,
        num_partitions: int | None = None,
    ) -> None:
        """`num_partitions`: that grouped topics must have; none: any, if all have the same."""
        self.references: References
        self.counters = Counters()
        self._stage = stage
        self._transport = transport
        self._router = Router(stage, dead_letters)
        self._limits = limits or RuntimeLimits()
        self._dead_letter_limits = DeadLetterLimits(stage.name, self._limits)
        self._monitor = LoopMonitor(stage.name, self.counters)
        self._log_references = LogReferences(transport, stage.references)
        self.references = self._log_references
        self._producer: Producer | None = None
        self._reader: WatchedReader | None = None
        self._dead_letters = dead_letters
        self._dead: set[LogRef] = set()
        topics = stage.all_topics(dead_letters)
        self._topics = PinnedTopics(f"stage {stage.name}", transport, topics, num_partitions)
        self._pinned: asyncio.Task[None] | None = None
        if len(stage.inputs) != 1:
            raise GagarError(f"stage {stage.name}: expected one input for a journal, got {len(stage.inputs)}")

    @property
    def input_id(self) -> str:
        return self._topics.topic_id(self._stage.inputs[0])

    async def connect(self) -> None:
        self._monitor.start()
        await self._transport.open()
        await self._topics.pin()
        self._pinned = asyncio.create_task(self._topics.watch(self._limits.pin_check_s), name="pinned topics")

    async def open(self) -> None:
        if self._pinned is None:
            await self.connect()
        partitions = await partitions_of(self._transport, self._stage.inputs)
        self._reader = WatchedReader(f"journal of {self._stage.name}", self._transport, partitions, self._limits.stall_s)
        self._reader.positions = dict.fromkeys(partitions, 0)
        self._producer = await self._transport.start_producer(f"{self._stage.name}.0", self._router.outputs)
        async for letter in scan_transport(self._transport, [self._dead_letters]):
            if letter.record.stage == self._stage.name:
                self._dead.add(letter.record.source)
        log.info("journal opened stage=%s", self._stage.name)

    async def seek(self, positions: Mapping[int, int]) -> None:
        reader = self._opened()
        await reader.open({at: positions.get(at.number, 0) for at in reader.positions})

    async def poll(self, timeout_s: float) -> list[Delivery[Any]]:
        if self._pinned is not None and self._pinned.done():
            self._pinned.result()
        try:
            raws = await self._opened().poll(timeout_s, POLL_RECORDS)
        except OutOfRangeError as error:
            await self._skip_missing(error)
            return []
        except UnavailableError as error:
            log.warning("journal interrupted stage=%s error=%s", self._stage.name, error)
            return []
        deliveries: list[Delivery[Any]] = []
        for raw in raws:
            try:
                deliveries.append(self._router.delivery(raw))
            except BadRecordError as error:
                await self._dead_letter(raw, error)
        self.counters.delivered += len(deliveries)
        return deliveries

    async def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> None:
        source = RawRecord(at=self._at(0), offset=0, key=b"", value=None, time=0.0)
        unit = Unit(inputs=(), outputs=self._router.encode_all(outputs), source=source)
        await self._transact(unit, {self._at(number): Committed(offset=offset) for number, offset in positions.items()})

    async def read_table(self, topic: Topic, observe: Callable[[Any], None]) -> None:
        async for delivery in scan_transport(self._transport, [topic]):
            observe(delivery.record)

    async def close(self) -> None:
        self._monitor.stop()
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            pinned.cancel()
            await gathered([pinned])
        producer, reader, self._producer, self._reader = self._producer, self._reader, None, None
        if producer is not None:
            await producer.close()
        if reader is not None:
            await reader.close()
        await self._log_references.close()
        await self._transport.close()

    def vitals(self, phase: Phase, round_at: float | None, patience_s: float) -> Vitals:
        """How its owner is, whose rounds go on all the time: the place in the log is the producer that fences others."""
        reader = self._reader
        return Vitals(
            at=time.monotonic(),
            phase=phase,
            is_member=self._producer is not None,
            num_partitions=len(reader.positions) if reader is not None else 0,
            silent_s=reader.silent_s if reader is not None else 0.0,
            polled_at=reader.polled_at if reader is not None else None,
            active_at=round_at,
            patience_s=patience_s,
            lag=self._lag(reader) if reader is not None else None,
        )

    def _lag(self, reader: WatchedReader) -> int | None:
        """Records that were not read yet, of the partitions whose ends are known."""
        behind = [max(0, end - reader.position(at)) for at in reader.positions if (end := reader.end(at)) is not None]
        return sum(behind) if behind else None

    def _at(self, number: int) -> Partition:
        return Partition(self._stage.inputs[0].name, number)

    def _opened(self) -> WatchedReader:
        if self._reader is None:
            raise GagarError(f"journal of {self._stage.name}: expected to be open, got a call before open or after close")
        return self._reader

    async def _dead_letter(self, raw: RawRecord, error: BadRecordError) -> None:
        """At once, in a transaction of its own; a learner that goes back to a checkpoint meets the record again and passes."""
        if raw.ref in self._dead:
            return
        self._dead.add(raw.ref)
        log.warning("record dead-lettered stage=%s record=%s error=%s", self._stage.name, raw.ref, error)
        await self._transact(self._router.dead_unit(raw, str(error)), {})
        self.counters.dead_letters += 1
        self._dead_letter_limits.note(True)

    async def _transact(self, unit: Unit, offsets: Mapping[Partition, Committed]) -> None:
        if self._producer is None:
            raise UnavailableError(f"journal of {self._stage.name}: expected a producer, got none since it failed; start again")
        try:
            await transact(self._producer, self._router, [unit], self._stage.name, offsets, self._limits.transaction_timeout_s)
        except BaseException as error:
            producer, self._producer = self._producer, None
            await producer.close()
            if isinstance(error, RefusedUnitError):
                raise GagarError(f"stage {self._stage.name}: expected outputs that the log takes, got {error}") from error
            raise
        self.counters.transactions += 1
        self._dead_letter_limits.note(False)
        await asyncio.sleep(self._limits.commit_gap_s)

    async def _skip_missing(self, error: OutOfRangeError) -> None:
        if error.offset > error.end:
            raise GagarError(
                f"checkpoint of {self._stage.name}: expected {error.at} to reach offset {error.offset}, got an end at "
                f"{error.end}: it belongs to another run's topics"
            ) from error
        num_missing = error.earliest - error.offset
        self.counters.missing += report_missing(self._stage.name, self._stage.inputs[0], error, num_missing)
        await self._opened().seek(error.at, error.earliest)
