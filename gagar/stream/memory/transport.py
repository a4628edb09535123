"""The in-memory transport: a log with the semantics that the runtime relies on, for tests and for trying a stage out.

Kept: everything, in lists. The same as on Kafka: transactions across partitions and offsets, markers that occupy offsets,
readers that stop at the last stable offset, fencing by transactional id, groups that are divided anew when a member comes or
goes. So are the hazards that make the runtime's rules necessary: a commit is decided before it is visible, and stays so if its
process dies in between, until the next producer of the id starts; a transaction commits without what was refused, unless the
answers of its sends are looked at; after an error a producer is of no more use. Each call can be interrupted before its effect
and after it.
Beyond it: `MemoryLog.faults` lets the next call of a kind fail, `MemoryTransport.kill` ends a process without a farewell.
"""

import asyncio
import time
import zlib
from collections.abc import Awaitable, Generator, Mapping, Sequence

import msgspec

from gagar.errors import FencedError, UnavailableError
from gagar.records import LogRef
from gagar.stream.log_clock import LogClock
from gagar.stream.memory.group import MemoryGroup, MemoryMembership
from gagar.stream.spec import Topic
from gagar.stream.together import bounded
from gagar.stream.transport import (
    Committed,
    Headers,
    OutOfRangeError,
    Owner,
    Partition,
    RawRecord,
    RefusedError,
    Send,
    TopicIdentity,
)


class Transaction(msgspec.Struct, kw_only=True):
    """Open until it ends one way or the other."""

    is_open: bool = True
    is_committed: bool = False
    touched: set[Partition] = msgspec.field(default_factory=set)
    decision: tuple[str, Mapping[Partition, Committed]] | None = None
    """Group and offsets of a commit that is certain and not visible yet: its markers are not written."""


class Entry(msgspec.Struct, kw_only=True):
    """What occupies an offset: a record, or (no transaction) a marker."""

    key: bytes = b""
    value: bytes | None = None
    headers: Headers = ()
    time: float = 0.0
    transaction: Transaction | None = None


class PartitionLog(msgspec.Struct, kw_only=True):
    """A partition: entries from offset `start` on."""

    start: int = 0
    entries: list[Entry] = []

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    @property
    def last_stable(self) -> int:
        """The first offset of an open transaction, or the end."""
        for i, entry in enumerate(self.entries):
            if entry.transaction is not None and entry.transaction.is_open:
                return self.start + i
        return self.end

    def offset_at(self, time: float) -> int:
        """The first offset of a record of that time or later, or the last stable one."""
        later = (self.start + i for i, entry in enumerate(self.entries) if entry.time and entry.time >= time)
        return min(next(later, self.end), self.last_stable)


class MemoryLog:
    """The cluster: shared by the transports of all processes of a test."""

    def __init__(self, topics: Sequence[Topic], num_partitions: int = 4) -> None:
        self.partitions: dict[Partition, PartitionLog] = {}
        self.faults: dict[str, list[Exception]] = {}
        """Errors that the next calls raise: `start`, `begin`, `send`, `answer` (a batch is refused, which its transaction does
        not notice), `commit`, `lost answer` (it is committed, yet the call fails), `poll`."""
        self.groups: dict[str, MemoryGroup] = {}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, Transaction] = {}
        self._topics = {topic.name: topic for topic in topics}
        self.lives: dict[str, int] = {}
        """How often a topic was made anew."""
        self._changed = asyncio.Event()
        for topic in topics:
            self.grow(topic.name, topic.count_partitions(num_partitions))

    def grow(self, topic: str, num_partitions: int) -> None:
        """An operator adds partitions, up to that number."""
        for number in range(self.num_partitions(topic), num_partitions):
            self.partitions[Partition(topic, number)] = PartitionLog()

    def remake(self, topic: str) -> None:
        """An operator deletes a topic and makes it anew, with as many partitions."""
        self.lives[topic] = self.lives.get(topic, 0) + 1
        for number in range(self.num_partitions(topic)):
            self.partitions[Partition(topic, number)] = PartitionLog()

    def num_partitions(self, topic: str) -> int:
        return sum(at.topic == topic for at in self.partitions)

    def group(self, name: str) -> MemoryGroup:
        return self.groups.setdefault(name, MemoryGroup())

    def fail(self, call: str) -> None:
        """Raises what is planned for a call, once."""
        planned = self.faults.get(call)
        if planned:
            raise planned.pop(0)

    def append(self, send: Send, transaction: Transaction | None = None, at: float | None = None) -> LogRef:
        """Writes a record; without a transaction it is visible at once. Raises RefusedError."""
        if len(send.value or b"") > self._topics[send.topic].max_record_bytes:
            raise RefusedError(f"{send.topic}: expected a smaller record, got {len(send.value or b'')} bytes")
        where = Partition(send.topic, number_of(send.key, self.num_partitions(send.topic)))
        log = self.partitions[where]
        moment = time.time() if at is None else at
        entry = Entry(key=send.key, value=send.value, headers=send.headers, time=moment, transaction=transaction)
        log.entries.append(entry)
        if transaction is not None:
            transaction.touched.add(where)
        self.notify()
        return LogRef(topic=where.topic, partition=where.number, offset=log.end - 1)

    def settle(self, transactional_id: str) -> None:
        """Ends what the id has open, as it was decided or by an abort: markers and offsets become visible together."""
        transaction = self.open.pop(transactional_id, None)
        if transaction is None:
            return
        transaction.is_open, transaction.is_committed = False, transaction.decision is not None
        for at in transaction.touched:
            self.partitions[at].entries.append(Entry())
        if transaction.decision is not None:
            group, offsets = transaction.decision
            self.group(group).offsets.update(offsets)
        self.notify()

    def truncate(self, at: Partition, start: int) -> None:
        """Retention: offsets below `start` are gone."""
        log = self.partitions[at]
        del log.entries[: start - log.start]
        log.start = start

    def visible(self, at: Partition, position: int, max_records: int) -> tuple[list[RawRecord], int]:
        """Committed records from `position` on, and the position after them."""
        log = self.partitions[at]
        found: list[RawRecord] = []
        end = log.last_stable
        while position < end and len(found) < max_records:
            entry = log.entries[position - log.start]
            is_marker = entry.transaction is None and not entry.time
            if not is_marker and (entry.transaction is None or entry.transaction.is_committed):
                raw = RawRecord(
                    at=at, offset=position, key=entry.key, value=entry.value, headers=entry.headers, time=entry.time
                )
                found.append(raw)
            position += 1
        return found, position

    def notify(self) -> None:
        """Wakes all who wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_change(self, timeout_s: float) -> None:
        """Until something is written, or for `timeout_s`."""
        await bounded(self._changed.wait(), timeout_s)


def number_of(key: bytes, num_partitions: int) -> int:
    """The partition of a key."""
    return zlib.crc32(key) % num_partitions


class MemoryTransport:
    """`gagar.stream.transport.Transport`; one for each process of a test."""

    def __init__(self, log: MemoryLog, member: str = "") -> None:
        """`member`: the process's name in its consumer groups."""
        self.log = log
        self.clock = LogClock()
        self.member = member
        self.is_dead = False

    def kill(self) -> None:
        """This process is gone: nothing that it has open ends, and its groups notice."""
        self.is_dead = True
        for group in self.log.groups.values():
            group.remove(self)

    def check(self) -> None:
        """Raises UnavailableError after `kill`."""
        if self.is_dead:
            raise UnavailableError("process: expected to be alive, got killed")

    async def open(self) -> None:
        await moment()
        self.check()

    async def describe(self, topics: Sequence[Topic], /) -> dict[str, TopicIdentity]:
        await moment()
        found = {topic.name: self.log.num_partitions(topic.name) for topic in topics}
        return {name: TopicIdentity(str(self.log.lives.get(name, 0)), num) for name, num in found.items() if num}

    def number_of(self, key: bytes, num_partitions: int, /) -> int:
        return number_of(key, num_partitions)

    def join(self, group: str, topics: Sequence[Topic], owner: Owner, /) -> MemoryMembership:
        num_partitions = self.log.num_partitions(topics[0].name)
        return MemoryMembership(self, self.log.group(group), num_partitions, owner)

    async def start_producer(self, transactional_id: str, outputs: Sequence[Topic], /) -> "MemoryProducer":
        await moment()
        self.check()
        self.log.fail("start")
        self.log.settle(transactional_id)
        epoch = self.log.epochs[transactional_id] = self.log.epochs.get(transactional_id, 0) + 1
        await moment()
        return MemoryProducer(self, transactional_id, epoch)

    async def open_reader(self, partitions: Sequence[Partition], /, *, is_single: bool = False) -> "MemoryReader":
        await moment()
        self.check()
        return MemoryReader(self, partitions)

    async def close(self) -> None: ...


async def moment() -> None:
    """A request on its way, or its answer: others go on, and a process may die."""
    await asyncio.sleep(0)


class MemoryAnswer:
    """Resolves, a moment later, to where the record came to lie."""

    def __init__(self, result: "LogRef | Exception") -> None:
        self._result = result

    def __await__(self) -> Generator[None, None, LogRef]:
        yield
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class MemoryProducer:
    """`gagar.stream.transport.Producer`."""

    def __init__(self, transport: MemoryTransport, transactional_id: str, epoch: int) -> None:
        self._transport = transport
        self._log = transport.log
        self._id = transactional_id
        self._epoch = epoch
        self._is_broken = False

    async def begin(self) -> None:
        await self._reach("begin")
        assert self._id not in self._log.open, "transactions of one producer follow one another"
        self._log.open[self._id] = Transaction()
        await moment()

    async def send(self, send: Send, /) -> Awaitable[LogRef]:
        await self._reach("send")
        answer = self._append(send)
        await moment()
        return answer

    async def commit(self, group: str, offsets: Mapping[Partition, Committed], /) -> None:
        await self._reach("commit")
        self._log.open[self._id].decision = group, dict(offsets)
        await moment()
        self._check()
        self._log.settle(self._id)
        await moment()
        self._transport.check()
        self._log.fail("lost answer")

    async def close(self) -> None:
        await moment()
        is_current = self._log.epochs[self._id] == self._epoch
        if is_current and not self._transport.is_dead:
            self._log.settle(self._id)

    async def _reach(self, call: str) -> None:
        assert not (call == "begin" and self._is_broken), "after an error a producer is dead: close it, start a new one"
        await moment()
        self._check()
        try:
            self._log.fail(call)
        except Exception:
            self._is_broken = True
            raise

    def _append(self, send: Send) -> MemoryAnswer:
        try:
            self._log.fail("answer")
            return MemoryAnswer(self._log.append(send, self._log.open[self._id], send.time))
        except (RefusedError, UnavailableError) as error:
            self._is_broken = True
            return MemoryAnswer(error)

    def _check(self) -> None:
        self._transport.check()
        if self._log.epochs[self._id] != self._epoch:
            raise FencedError(f"{self._id}: expected to own its place, got a newer producer")


class MemoryReader:
    """`gagar.stream.transport.Reader`."""

    def __init__(self, transport: MemoryTransport, partitions: Sequence[Partition]) -> None:
        self._transport = transport
        self._log = transport.log
        self._partitions = list(partitions)
        self._positions: dict[Partition, int] = {}
        self._paused: set[Partition] = set()

    async def seek(self, at: Partition, offset: int | None, /) -> None:
        await moment()
        self._positions[at] = self._log.partitions[at].start if offset is None else offset

    async def poll(self, timeout_s: float, max_records: int, /) -> list[RawRecord]:
        await moment()
        self._transport.check()
        self._log.fail("poll")
        records = self._read(max_records)
        if not records:
            await self._log.wait_change(timeout_s)
            records = self._read(max_records)
        return records

    def pause(self, at: Partition, /) -> None:
        self._paused.add(at)

    def resume(self, at: Partition, /) -> None:
        self._paused.discard(at)

    def position(self, at: Partition, /) -> int:
        return self._positions[at]

    def is_caught_up(self, at: Partition, /) -> bool:
        return self._positions[at] >= self._log.partitions[at].last_stable

    def end(self, at: Partition, /) -> int | None:
        return self._log.partitions[at].last_stable

    async def ends(self) -> dict[Partition, int]:
        await moment()
        return {at: self._log.partitions[at].last_stable for at in self._partitions}

    async def offsets_at(self, time: float, /) -> dict[Partition, int]:
        await moment()
        return {at: self._log.partitions[at].offset_at(time) for at in self._partitions}

    async def close(self) -> None:
        await moment()

    def _read(self, max_records: int) -> list[RawRecord]:
        records: list[RawRecord] = []
        for at in sorted(self._positions.keys() - self._paused):
            log, position = self._log.partitions[at], self._positions[at]
            if not log.start <= position <= log.end:
                raise OutOfRangeError(at, position, log.start, log.last_stable)
            found, self._positions[at] = self._log.visible(at, position, max_records - len(records))
            for raw in found:
                raw.here = self._transport.clock.note_read(raw.time)
            records += found
        return records
