"""Writes the records of an excerpt into the empty topics of a fresh run, in one transaction, with references that lead there.

In: an open file, a transport, the topics of a run. Out: the records, and last the run's settings, by which every stage knows
that the run was imported and begins nothing on it. Records keep partition number, order, key, headers and broker time. A
partition of which retention had taken the beginning there gets tombstones first, which are deleted then, so that its log begins
later than at 0 here too, and references to what is gone lead before that. Not promised: that offsets are what they were.

An import that is broken off leaves nothing that readers see but those tombstones, and can be done again. Nobody else may write
to the run meanwhile: each record is compared with the place that was foretold for it.
"""

import asyncio
import heapq
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from operator import attrgetter
from typing import Protocol

from gagar.errors import ConfigError, UnavailableError
from gagar.excerpts.container import ExcerptFile, Manifest, Row
from gagar.excerpts.relocation import Relocation, Retired
from gagar.records import LogRef, RunSettings, encode
from gagar.stream.readers.scans import scan_raw
from gagar.stream.readers.watched import partitions_of
from gagar.stream.routing import key_of
from gagar.stream.spec import Topic, topic_of
from gagar.stream.transport import Partition, Producer, Send, Transport

NAME = "import"
"""Of the transactional id, `<run>.import`."""
MAX_UNANSWERED = 512
"""Records on their way at a time."""
MAX_UNANSWERED_BYTES = 64 << 20
Places = Mapping[Partition, "array[int]"]


class LogBounds(Protocol):
    """Where the logs of a run begin and end."""

    async def ends(self) -> Mapping[Partition, int]:
        """The next offset of each partition, asked for when no transaction is open there any more."""

    async def begin_at(self, offsets: Mapping[Partition, int], /) -> None:
        """Lets partitions begin there, as retention would."""


def known_topics(manifest: Manifest, topics: Sequence[Topic], num_partitions: int) -> None:
    """Raises ConfigError for an excerpt with records of a partition that a run of so many does not have."""
    counts = {topic.name: topic.count_partitions(num_partitions) for topic in topics}
    for member in manifest.members:
        if not 0 <= member.number < counts.get(member.topic, 0):
            raise ConfigError(
                f"{member.name}: expected a partition of {', '.join(counts)}, got {member.topic}[{member.number}]"
            )


async def check_empty(transport: Transport, topics: Sequence[Topic]) -> None:
    """Raises ConfigError if the topics hold a record; what was written and never committed, and tombstones, are none."""
    async with aclosing(scan_raw(transport, await partitions_of(transport, topics))) as raws:
        async for raw in raws:
            if raw.value is not None:
                raise ConfigError(f"run.name: expected a run without records, got one with {raw.ref}; set another run.name")


def retired_of(manifest: Manifest) -> dict[Partition, Retired]:
    """The partitions of which retention had taken the beginning."""
    retired = {Partition(begin.topic, begin.number): Retired(begin.offset, []) for begin in manifest.begins}
    for ref in sorted(manifest.missing):
        found = retired.get(Partition(ref.topic, ref.partition))
        if found is not None and ref.offset < found.begin:
            found.offsets.append(ref.offset)
    return retired


class Importer:
    """Imports once."""

    def __init__(
        self, file: ExcerptFile, offsets: Places, transport: Transport, topics: Sequence[Topic], settings: RunSettings
    ) -> None:
        """`offsets`: those of `file`, which has been compared with its checksums by that. `topics`: of a run. `settings`: what
        the new run is to have on the log, on a topic among them."""
        self._file = file
        self._offsets = offsets
        self._transport = transport
        self._topics = topics
        self._settings = settings

    async def run(self, bounds: LogBounds, on_record: Callable[[Row], None], timeout_s: float) -> None:
        """Writes everything; `on_record` is called with each record. Raises UnavailableError if the log fails, if it takes
        longer than brokers let a transaction take, or if somebody else writes to the run: then nothing is to be seen."""
        retired = retired_of(self._file.manifest)
        producer = await self._transport.start_producer(NAME, self._topics)
        try:
            async with asyncio.timeout(timeout_s):
                await self._begin_later(producer, retired, bounds)
                await self._write(producer, Relocation(self._offsets, await bounds.ends(), retired), on_record)
        except TimeoutError as error:
            expected = f"expected all {self._file.manifest.num_records} records within {timeout_s:g} s, got no end"
            advice = "see whether the brokers answer, export less, or raise their transaction.max.timeout.ms"
            raise UnavailableError(f"import: {expected}; nothing of it is to be seen; {advice}") from error
        finally:
            await producer.close()

    async def _write(self, producer: Producer, relocation: Relocation, on_record: Callable[[Row], None]) -> None:
        sender = Sender(producer)
        await producer.begin()
        for at in sorted(self._offsets):
            for row in self._rows(at):
                await sender.send(_moved(row, at, relocation), at, relocation.offset(at, row.offset))
                on_record(row)
        await sender.send(self._told(), None, 0)
        await sender.wait()
        try:
            await producer.commit(NAME, {})
        except UnavailableError as error:
            unknown = "whether all of it is in the run now, or nothing, is not known; `gagar show run` tells"
            raise UnavailableError(f"import: expected to be committed, got {error}; {unknown}") from error

    def _rows(self, at: Partition) -> Iterator[Row]:
        """The records of a partition in the order of the log that they come from."""
        members = [member for member in self._file.manifest.members if (member.topic, member.number) == at]
        return heapq.merge(*map(self._file.rows, members), key=attrgetter("offset"))

    def _told(self) -> Send:
        topic = topic_of(self._topics, RunSettings)
        return Send(topic=topic.name, key=key_of(self._settings).encode(), value=encode(self._settings))

    async def _begin_later(self, producer: Producer, retired: Mapping[Partition, Retired], bounds: LogBounds) -> None:
        """Lets the logs begin later than at 0, with room before that for what is referred to there."""
        if not retired:
            return
        grouped = {topic.name for topic in self._topics if topic.is_grouped}  # a key leads elsewhere among other numbers
        keys = {at.number: next(self._rows(at)).key for at in self._offsets if at.topic in grouped}
        sender = Sender(producer)
        await producer.begin()
        for at, gone in retired.items():  # the first stands for whatever else was there
            for _ in range(1 + len(gone.offsets)):
                await sender.send(Send(topic=at.topic, key=keys[at.number], value=None), None, 0)
        await sender.wait()
        await producer.commit(NAME, {})
        ends = await bounds.ends()
        await bounds.begin_at({at: ends[at] for at in retired})


class Sender:
    """Sends records of one transaction, a bounded number at a time, and makes sure that each lies where it should."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._answers: deque[tuple[Awaitable[LogRef], Partition | None, int, int]] = deque()
        self._num_bytes = 0

    async def send(self, send: Send, at: Partition | None, place: int) -> None:
        """Hands a record over that must come to lie at an offset of a partition; None: wherever it does."""
        size = len(send.value or b"")
        self._answers.append((await self._producer.send(send), at, place, size))
        self._num_bytes += size
        while len(self._answers) >= MAX_UNANSWERED or self._num_bytes >= MAX_UNANSWERED_BYTES:
            await self._wait_for_one()

    async def wait(self) -> None:
        """Until all are answered."""
        while self._answers:
            await self._wait_for_one()

    async def _wait_for_one(self) -> None:
        answer, at, place, size = self._answers.popleft()
        self._num_bytes -= size
        ref = await answer
        if at is not None and (Partition(ref.topic, ref.partition), ref.offset) != (at, place):
            raise UnavailableError(f"{at}@{place}: expected a record there, got it at {ref}; let nobody else write to this run")


def _moved(row: Row, at: Partition, relocation: Relocation) -> Send:
    return Send(
        topic=at.topic,
        key=row.key,
        value=None if row.value is None else relocation.value(row.value),
        headers=relocation.headers(row.headers),
        time=row.time_ms / 1000,
    )
