"""The newest names on a topic, for completion in a shell: a bounded look at the ends of its partitions.

In: a transport, a topic, how to name a record. Out: names, the newest first. Of each partition the last `MAX_RECORDS` offsets
are read.
"""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from gagar.stream.handlers import Delivery
from gagar.stream.readers.scans import scan_transport, spans_between
from gagar.stream.readers.watched import partitions_of
from gagar.stream.spec import Topic
from gagar.stream.transport import Transport

MAX_RECORDS = 500


async def recent_names(transport: Transport, topic: Topic, name_of: Callable[[Delivery[Any]], str]) -> list[str]:
    """Each name once; empty ones are left out. Raises UnavailableError."""
    whole = await spans_between(transport, await partitions_of(transport, [topic]))
    spans = {at: (max(begin, end - MAX_RECORDS), end) for at, (begin, end) in whole.items()}
    found: dict[str, float] = {}
    async with aclosing(scan_transport(transport, [topic], spans=spans)) as deliveries:
        async for delivery in deliveries:
            if name := name_of(delivery):
                found[name] = delivery.at
    return sorted(found, key=lambda name: (-found[name], name))
