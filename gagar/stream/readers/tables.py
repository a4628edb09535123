"""Tables: topics read whole from the start at each start, and followed.

In: all partitions of the stage's tables. Out: `observe(record)` in log order per key, the past before anything else. No
position is kept. A record that cannot be read is counted and left out: a table has no group to end.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from gagar.errors import BadRecordError
from gagar.records import Record
from gagar.stream.limits import RuntimeLimits, retrying
from gagar.stream.readers.watched import WatchedReader, partitions_of
from gagar.stream.routing import to_delivery
from gagar.stream.spec import Topic
from gagar.stream.transport import Partition, RawRecord, Transport

log = logging.getLogger(__name__)


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
        self._reader: WatchedReader | None = None
        self._retrying = retrying(f"tables of {stage}", limits)

    @property
    def polled_at(self) -> float | None:
        """When the tables were last asked for records; none if there are no tables, or before that."""
        return self._reader.polled_at if self._reader is not None else None

    async def load(self) -> None:
        """Reads up to the ends that the topics have now; after a failure it goes on where it was."""
        if self._topics:
            reader: WatchedReader = self._reader if self._reader is not None else await self._retrying(self._opened)
            self._reader = reader
            ends: dict[Partition, int] = await self._retrying(reader.ends)
            while not reader.has_reached(ends):
                await self._retrying(self._poll, reader)
        log.info("tables read stage=%s topics=%s", self._stage, ",".join(self._topics) or "none")

    async def follow(self) -> None:
        """Until cancelled."""
        while self._reader is not None:
            await self._retrying(self._poll, self._reader)

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    async def _opened(self) -> WatchedReader:
        partitions = await partitions_of(self._transport, self._topics.values())
        reader = WatchedReader(f"tables of {self._stage}", self._transport, partitions, self._limits.stall_s)
        reader.positions = dict.fromkeys(partitions)
        return reader

    async def _poll(self, reader: WatchedReader) -> None:
        for raw in await reader.poll_what_is_left():
            self._take(raw)

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
