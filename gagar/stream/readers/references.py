"""Reads records by where they lie: one here, one there, each read once and nothing beside it."""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from gagar.errors import BadRecordError, UnavailableError
from gagar.records import LogRef, decode
from gagar.stream.readers.watched import WatchedReader, partitions_of
from gagar.stream.spec import Topic
from gagar.stream.transport import OutOfRangeError, Partition, RawRecord, Transport

log = logging.getLogger(__name__)

RecordT = TypeVar("RecordT", bound=msgspec.Struct)

BATCH_RECORDS = 500
"""More than the one batch that is fetched holds: what a client keeps of a batch half read is garbage that lives for long."""
READ_TIMEOUT_S = 20.0
"""A record whose reference is visible is so itself, or will be within moments: its transaction has been committed."""

POLL_S = 1.0
"""After so long without a record it is asked whether reading has passed the place."""


class LogReferences:
    """`gagar.stream.handlers.References` over a transport."""

    def __init__(self, transport: Transport, topics: Sequence[Topic], *, owns_transport: bool = False) -> None:
        self._transport = transport
        self._topics = topics
        self._owns_transport = owns_transport
        self._known: list[Partition] = []
        self._reader: WatchedReader | None = None
        self._turn = asyncio.Lock()

    async def connect(self) -> None:
        """Raises UnavailableError."""
        if self._owns_transport:
            await self._transport.open()

    async def read(self, refs: Sequence[LogRef], record_type: type[RecordT], /) -> list[RecordT]:
        """The records at `refs`, in that order; raises BadRecordError, UnavailableError."""
        raws: dict[LogRef, RawRecord] = {}
        async with self._turn:
            for ref in sorted(set(refs)):
                raws[ref] = await self._read_or_reopen(ref)
        return [_decoded(raws[ref], record_type) for ref in refs]

    async def find(self, ref: LogRef) -> RawRecord:
        """The record at `ref` as it lies in the log; raises BadRecordError if there is none any more, UnavailableError."""
        async with self._turn:
            return await self._read_or_reopen(ref)

    async def close(self) -> None:
        """Raises nothing."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        if self._owns_transport:
            await self._transport.close()

    async def _read_or_reopen(self, ref: LogRef) -> RawRecord:
        """A reader that failed once may be a stale one."""
        reader = await self._opened()
        try:
            return await self._read_one(reader, ref)
        except UnavailableError as error:
            log.warning("reference read again record=%s error=%s", ref, error)
            await reader.close()
            return await self._read_one(reader, ref)

    async def _read_one(self, reader: WatchedReader, ref: LogRef) -> RawRecord:
        at = Partition(ref.topic, ref.partition)
        if at not in self._known:
            raise BadRecordError(f"{ref}: expected a partition of {[topic.name for topic in self._topics]}, got none such")
        try:
            await reader.open({at: ref.offset})
            reader.resume(at)
            records = await _polled(reader, at, ref.offset)
        except OutOfRangeError as error:
            raise BadRecordError(f"{ref}: expected a record, got none: the log begins at {error.earliest}") from error
        finally:
            reader.pause(at)
        if not records and reader.position(at) > ref.offset:
            raise BadRecordError(f"{ref}: expected a record, got none there, nor any after it")
        if not records:
            raise UnavailableError(f"{ref}: expected the record within {READ_TIMEOUT_S:g} s, got none")
        if records[0].offset != ref.offset:
            raise BadRecordError(f"{ref}: expected a record, got none there; the next is at {records[0].offset}")
        return records[0]

    async def _opened(self) -> WatchedReader:
        if self._reader is None:
            self._known = await partitions_of(self._transport, self._topics)
            self._reader = WatchedReader("references", self._transport, self._known, math.inf, is_single=True)
        return self._reader


async def _polled(reader: WatchedReader, at: Partition, offset: int) -> list[RawRecord]:
    """What comes next, within `READ_TIMEOUT_S`; none at once if there was nothing to deliver at `offset`, as a marker."""
    records: list[RawRecord] = []
    deadline = time.monotonic() + READ_TIMEOUT_S
    while not records and reader.position(at) <= offset and time.monotonic() < deadline:
        records = await reader.poll(min(POLL_S, READ_TIMEOUT_S), BATCH_RECORDS)
    return records


def _decoded(raw: RawRecord, record_type: type[RecordT]) -> RecordT:
    if raw.value is None:
        raise BadRecordError(f"{raw.ref}: expected a {record_type.__name__}, got a tombstone")
    try:
        return decode(record_type, raw.value)
    except BadRecordError as error:
        raise BadRecordError(f"{raw.ref}: {error}") from error
