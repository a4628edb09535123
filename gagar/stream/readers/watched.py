"""A reader that is watched: it polls, notices when nothing comes though there is more to read, and opens anew where it was.

In: a transport and partitions. Out: raw records. Kept: the position of each partition. A client whose fetching has died says
nothing about it; so a reader that is behind, or does not know, and gets nothing for a while is given up.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from gagar.errors import UnavailableError
from gagar.stream.spec import Topic
from gagar.stream.transport import OutOfRangeError, Partition, RawRecord, Reader, Transport

log = logging.getLogger(__name__)

POLL_RECORDS = 500


async def partitions_of(transport: Transport, topics: Iterable[Topic]) -> list[Partition]:
    """Every partition of the topics. Raises UnavailableError if one has none: it does not exist, or the cluster, which has just
    started, does not tell yet; to read nothing would be taken for a topic without records."""
    topics = list(topics)
    found = await transport.describe(topics)
    counts = {topic.name: found[topic.name].num_partitions if topic.name in found else 0 for topic in topics}
    for name, count in counts.items():
        if not count:
            raise UnavailableError(f"topic {name}: expected partitions, got none")
    return [Partition(name, number) for name, count in counts.items() for number in range(count)]


class WatchedReader:
    """See the module. Opened by the first call that needs it, closed by any failure and by `close`, then opened anew."""

    def __init__(
        self, name: str, transport: Transport, partitions: Sequence[Partition], stall_s: float, *, is_single: bool = False
    ) -> None:
        """`stall_s`: after so long without an answer from the log, while there is more to read, a poll fails."""
        self.positions: dict[Partition, int | None] = {}
        """Where to read on; None: at the earliest record. A partition that is not named here is not read."""
        self._name = name
        self._transport = transport
        self._partitions = partitions
        self._stall_s = stall_s
        self._is_single = is_single
        self._reader: Reader | None = None
        self._is_placed = False
        self.silent_s = 0.0
        """Seconds that polls have taken without an answer from the log, though there is more to read."""
        self.polled_at: float | None = None
        """When the last poll ended, however it did, by the monotonic clock."""
        self._paused: set[Partition] = set()

    async def ends(self) -> dict[Partition, int]:
        """The last stable offset of each partition. Best asked before the first poll: a question on the same connection waits
        behind a fetch that waits for records."""
        try:
            return await (await self._opened()).ends()
        except UnavailableError:
            await self.close()
            raise

    async def offsets_at(self, time: float) -> dict[Partition, int]:
        """The first offset of each partition whose record is of that time or later, or its end; best asked before the first
        poll too."""
        try:
            return await (await self._opened()).offsets_at(time)
        except UnavailableError:
            await self.close()
            raise

    async def poll(self, timeout_s: float, max_records: int) -> list[RawRecord]:
        """The next records; raises OutOfRangeError, and UnavailableError, after which the next poll reads on at `positions`."""
        try:
            reader, started = await self._placed(), time.monotonic()
            records = await reader.poll(timeout_s, max_records)
            self._watch(time.monotonic() - started, records)
        except UnavailableError:
            await self.close()
            raise
        finally:
            self.polled_at = time.monotonic()
        for at in self.positions:
            self.positions[at] = reader.position(at)
        return records

    async def poll_what_is_left(self) -> list[RawRecord]:
        """The next records, within a second; what the log no longer holds is passed over with a warning."""
        try:
            return await self.poll(1.0, POLL_RECORDS)
        except OutOfRangeError as error:
            log.warning(
                "records gone before they were read reader=%s partition=%s from=%d to=%d",
                self._name,
                error.at,
                error.offset,
                error.earliest,
            )
            await self.seek(error.at, error.earliest)
            return []

    async def seek(self, at: Partition, offset: int) -> None:
        """The next record to read."""
        self.positions[at] = offset
        if self._is_placed and self._reader is not None:
            await self._reader.seek(at, offset)

    async def open(self, positions: Mapping[Partition, int | None]) -> None:
        """Begins to read at these positions, and at nothing else; a failure shows here."""
        self.positions = dict(positions)
        self._is_placed = False
        await self._placed()

    def position(self, at: Partition) -> int:
        """Offset after the last one read, transaction markers included; 0 while the earliest is not known yet."""
        return self.positions[at] or 0

    def has_reached(self, ends: Mapping[Partition, int]) -> bool:
        """Whether everything below `ends` has been read."""
        return all(self.position(at) >= end for at, end in ends.items())

    def end(self, at: Partition) -> int | None:
        """The last stable offset, as far as it is known."""
        return self._reader.end(at) if self._reader is not None and self._is_placed else None

    def pause(self, at: Partition) -> None:
        self._paused.add(at)
        if self._reader is not None:
            self._reader.pause(at)

    def resume(self, at: Partition) -> None:
        self._paused.discard(at)
        if self._reader is not None:
            self._reader.resume(at)

    def behind(self) -> list[Partition]:
        """Partitions that are not paused and not read up to their ends, as far as is known."""
        reader = self._reader
        return [at for at in self.positions if at not in self._paused and (reader is None or not reader.is_caught_up(at))]

    async def close(self) -> None:
        reader, self._reader, self._is_placed = self._reader, None, False
        if reader is not None:
            await reader.close()

    async def _opened(self) -> Reader:
        if self._reader is None:
            self._reader = await self._transport.open_reader(self._partitions, is_single=self._is_single)
            self.silent_s = 0.0
        return self._reader

    async def _placed(self) -> Reader:
        reader = await self._opened()
        if not self._is_placed:
            await asyncio.gather(*(reader.seek(at, position) for at, position in self.positions.items()))
            for at in self.positions:
                self.positions[at] = reader.position(at)
            for at in self._paused:
                reader.pause(at)
            self._is_placed = True
        return reader

    def _watch(self, waited_s: float, records: Sequence[RawRecord]) -> None:
        self.silent_s = 0.0 if records or not self.behind() else self.silent_s + waited_s
        if self.silent_s > self._stall_s:
            raise UnavailableError(f"{self._name}: expected an answer within {self._stall_s:g} s, got none")
