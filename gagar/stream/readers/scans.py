"""Reads topics from their start: for audit, reports, live views. Nothing is committed, no group is joined."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from gagar.errors import BadRecordError
from gagar.stream.handlers import Delivery
from gagar.stream.limits import RuntimeLimits
from gagar.stream.readers.stall_watchdog import Silence, behind
from gagar.stream.readers.tables import partitions_of
from gagar.stream.routing import to_delivery
from gagar.stream.spec import Topic
from gagar.stream.transport import OutOfRangeError, Partition, RawRecord, Reader, Transport

log = logging.getLogger(__name__)

POLL_RECORDS = 500
Spans = Mapping[Partition, tuple[int, int]]
"""The first offset to read and the one to stop at."""


async def scan_transport(
    transport: Transport, topics: Sequence[Topic], *, follow: bool = False, spans: Spans | None = None
) -> AsyncIterator[Delivery[Any]]:
    """Committed records to the present ends (or on and on with `follow`), decoded; per partition in log order.

    Tombstones and bad records are skipped, the latter with a warning. `spans`: where to begin and end instead. Raises
    UnavailableError if a topic is not there, or (but with `follow`, which waits) if the log falls silent before the end.
    """
    by_name = {topic.name: topic for topic in topics}
    partitions = await partitions_of(transport, topics)
    reader = await transport.open_reader(partitions)
    silence = Silence(f"scan of {','.join(by_name)}", math.inf if follow else RuntimeLimits().silence_s)
    try:
        ends = await _start(reader, partitions, spans)
        while follow or any(reader.position(at) < end for at, end in ends.items()):
            for raw in await _poll(reader, silence, partitions):
                delivery = _decoded(raw, by_name[raw.at.topic])
                if delivery is not None and (follow or raw.offset < ends[raw.at]):
                    yield delivery
    finally:
        await reader.close()


async def _start(reader: Reader, partitions: Sequence[Partition], spans: Spans | None) -> dict[Partition, int]:
    """Asks for ends and starts before anything is fetched: a question on the same connection waits behind an idle fetch."""
    if spans is not None:
        await asyncio.gather(*(reader.seek(at, spans[at][0]) for at in partitions))
        return {at: spans[at][1] for at in partitions}
    ends = await reader.ends()
    await asyncio.gather(*(reader.seek(at, None) for at in partitions))
    return ends


def _decoded(raw: RawRecord, topic: Topic) -> Delivery[Any] | None:
    """None for a tombstone and for a bad record, which is told."""
    if raw.value is None:
        return None
    try:
        return to_delivery(raw, topic)
    except BadRecordError as error:
        log.warning("bad record skipped record=%s error=%s", raw.ref, error)
        return None


async def _poll(reader: Reader, silence: Silence, partitions: Sequence[Partition]) -> list[RawRecord]:
    started = time.monotonic()
    try:
        raws = await reader.poll(1.0, POLL_RECORDS)
    except OutOfRangeError as error:
        log.warning("records gone before they were read partition=%s up_to=%d", error.at, error.earliest)
        await reader.seek(error.at, error.earliest)
        return []
    is_behind = bool(behind(reader, partitions))
    silence.note(time.monotonic() - started, is_behind=is_behind, num_records=len(raws))
    return raws
