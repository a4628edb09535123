"""Reads topics from their start: for audit, reports, live views. Nothing is committed, no group is joined."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from gagar.errors import BadRecordError, UnavailableError
from gagar.stream.handlers import Delivery
from gagar.stream.limits import RuntimeLimits
from gagar.stream.readers.watched import WatchedReader, partitions_of
from gagar.stream.retries import mark_in
from gagar.stream.routing import to_delivery
from gagar.stream.spec import Topic
from gagar.stream.transport import Partition, RawRecord, Transport

log = logging.getLogger(__name__)

Spans = Mapping[Partition, tuple[int, int]]
"""The first offset to read and the one to stop at."""
VISIBLE_S, VISIBLE_POLL_S = 30.0, 0.1
"""How long readers may take to see a commit, and how often that is looked for."""


async def scan_transport(
    transport: Transport, topics: Sequence[Topic], *, follow: bool = False, spans: Spans | None = None
) -> AsyncGenerator[Delivery[Any], None]:
    """Committed records to the present ends (or on and on with `follow`), decoded; per partition in log order.

    Tombstones, retries and bad records are skipped, the latter with a warning. `spans`: where to begin and end instead. Raises
    UnavailableError if a topic is not there, or (but with `follow`, which waits) if the log falls silent before the end.
    """
    by_name = {topic.name: topic for topic in topics}
    partitions = await partitions_of(transport, topics)
    spans = {at: spans[at] for at in partitions} if spans is not None else None
    async with aclosing(scan_raw(transport, partitions, follow=follow, spans=spans)) as raws:
        async for raw in raws:
            delivery = _decoded(raw, by_name[raw.at.topic])
            if delivery is not None:
                yield delivery


async def scan_raw(
    transport: Transport, partitions: Sequence[Partition], *, follow: bool = False, spans: Spans | None = None
) -> AsyncGenerator[RawRecord, None]:
    """The same of some partitions as they lie in the log, with tombstones and bad records."""
    stall_s = math.inf if follow else RuntimeLimits().stall_s
    topics = dict.fromkeys(at.topic for at in partitions)
    reader = WatchedReader(f"scan of {','.join(topics)}", transport, partitions, stall_s)
    try:
        ends = await _begin(reader, partitions, spans)
        while follow or not reader.has_reached(ends):
            for raw in await reader.poll_what_is_left():
                if follow or raw.offset < ends[raw.at]:
                    yield raw
    finally:
        await reader.close()


async def _begin(reader: WatchedReader, partitions: Sequence[Partition], spans: Spans | None) -> dict[Partition, int]:
    """Opens the reader; the answer is where to stop."""
    if spans is None:
        ends = await reader.ends()
        await reader.open(dict.fromkeys(partitions))
        return ends
    await reader.open({at: spans[at][0] for at in partitions})
    return {at: spans[at][1] for at in partitions}


def _decoded(raw: RawRecord, topic: Topic) -> Delivery[Any] | None:
    """None for a tombstone, for a retry, whose original was there before, and for a bad record, which is told."""
    if raw.value is None or mark_in(raw.headers) is not None:
        return None
    try:
        return to_delivery(raw, topic)
    except BadRecordError as error:
        log.warning("bad record skipped record=%s error=%s", raw.ref, error)
        return None


async def spans_between(
    transport: Transport, partitions: Sequence[Partition], since: float = 0.0, until: float = math.inf
) -> dict[Partition, tuple[int, int]]:
    """First and end offset of the committed records of each partition whose broker time (Unix seconds) is in `[since, until)`:
    of all that it holds, if no time is given. Raises UnavailableError."""
    if not partitions:
        return {}
    names = ",".join(dict.fromkeys(at.topic for at in partitions))
    reader = WatchedReader(f"offsets of {names}", transport, partitions, math.inf)
    try:
        begins = await reader.offsets_at(max(since, 0.0))
        ends = await (reader.offsets_at(until) if until < math.inf else reader.ends())
    finally:
        await reader.close()
    return {at: (begin, max(begin, ends[at])) for at, begin in begins.items()}


async def until_visible(is_visible: Callable[[], Awaitable[bool]], expected: str) -> None:
    """Waits until readers see what was committed, which they do a moment after the commit is answered. Raises UnavailableError,
    which says what was `expected`, if they do not."""
    deadline = time.monotonic() + VISIBLE_S
    while not await is_visible():
        if time.monotonic() > deadline:
            raise UnavailableError(f"{expected} within {VISIBLE_S:g} s of the commit, got none or others")
        await asyncio.sleep(VISIBLE_POLL_S)
