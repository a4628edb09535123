"""Tables: topics read whole from the start at each start, and followed.

In: all partitions of the stage's tables. Out: `observe(record)` in log order per key, the past before anything else. No
position is kept. A record that cannot be read is counted and left out: a table has no group to end.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from gagar.errors import BadRecordError, UnavailableError
from gagar.records import Record
from gagar.stream.limits import RuntimeLimits
from gagar.stream.readers.stall_watchdog import Silence, behind
from gagar.stream.routing import to_delivery
from gagar.stream.spec import Topic
from gagar.stream.transport import OutOfRangeError, Partition, RawRecord, Reader, Transport

log = logging.getLogger(__name__)

POLL_RECORDS = 500


async def partitions_of(transport: Transport, topics: Sequence[Topic]) -> list[Partition]:
    """Every partition of the topics. Raises UnavailableError if one has none: it does not exist, or the cluster, which has just
    started, does not tell yet; to read nothing would be taken for a topic without records."""
    counts = {topic.name: await transport.num_partitions(topic) for topic in topics}
    for name, count in counts.items():
        if not count:
            raise UnavailableError(f"topic {name}: expected partitions, got none")
    return [Partition(name, number) for name, count in counts.items() for number in range(count)]


class TableFollower:
    """See the module. `load` returns when the past has been observed; `follow` goes on from there."""

    def __init__(
        self,
        stage: str,
        transport: Transport,
        topics: Sequence[Topic],
        observe: Callable[[Record], None],
        limits: RuntimeLimits,
    ) -> None:
        self.changed = asyncio.Event()
        """Set at each new record."""
        self._stage = stage
        self._transport = transport
        self._topics = {topic.name: topic for topic in topics}
        self._observe = observe
        self._limits = limits
        self._reader: Reader | None = None
        self._positions: dict[Partition, int | None] = {}
        self._silence = Silence(f"tables of {stage}", limits.silence_s)
        self._num_failures = 0

    async def load(self) -> None:
        """Reads up to the ends that the topics have now."""
        ends: dict[Partition, int] = {}
        while self._topics and not ends:
            await self._attempt(self._ask_ends(ends))
        while any((self._positions[at] or 0) < end for at, end in ends.items()):
            await self._attempt(self._poll())
        log.info("tables read stage=%s topics=%s", self._stage, ",".join(self._topics) or "none")

    async def follow(self) -> None:
        """Until cancelled."""
        while self._positions:
            await self._attempt(self._poll())

    async def _attempt(self, step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
            self._num_failures = 0
        except UnavailableError as error:
            self._num_failures += 1
            log.warning("tables interrupted stage=%s failures=%d error=%s", self._stage, self._num_failures, error)
            await self.close()
            await asyncio.sleep(self._limits.backoff(self._num_failures))

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _ask_ends(self, ends: dict[Partition, int]) -> None:
        self._positions = dict.fromkeys(await partitions_of(self._transport, list(self._topics.values())))
        ends.update(await (await self._opened()).ends())

    async def _opened(self) -> Reader:
        if self._reader is None:
            self._reader = reader = await self._transport.open_reader(list(self._positions))
            for at, position in self._positions.items():
                await reader.seek(at, position)
                self._positions[at] = reader.position(at)
        return self._reader

    async def _poll(self) -> None:
        reader, started = await self._opened(), time.monotonic()
        try:
            records = await reader.poll(1.0, POLL_RECORDS)
        except OutOfRangeError as error:
            log.warning(
                "table moved on stage=%s partition=%s from=%d to=%d", self._stage, error.at, error.offset, error.earliest
            )
            await reader.seek(error.at, error.earliest)
            return
        for raw in records:
            self._take(raw)
        for at in self._positions:
            self._positions[at] = reader.position(at)
        is_behind = bool(behind(reader, self._positions))
        self._silence.note(time.monotonic() - started, is_behind=is_behind, num_records=len(records))

    def _take(self, raw: RawRecord) -> None:
        if raw.value is None:
            return
        try:
            delivery = to_delivery(raw, self._topics[raw.at.topic])
        except BadRecordError as error:
            log.warning("table record skipped stage=%s record=%s error=%s", self._stage, raw.ref, error)
            return
        self._observe(delivery.record)
        self.changed.set()
