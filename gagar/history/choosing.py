"""Which groups are meant: those of a task, or requested in a span of time.

In: a transport, the topics of a run, what is asked for. Out: group ids, each once. Kept: what is found.
"""

import math
from collections.abc import Sequence
from contextlib import aclosing

from gagar.records import RolloutRequest
from gagar.stream.readers.scans import scan_transport, spans_between
from gagar.stream.readers.watched import partitions_of
from gagar.stream.spec import Topic, topic_of
from gagar.stream.transport import Transport


async def groups_between(
    transport: Transport, topics: Sequence[Topic], since: float = 0.0, until: float = math.inf, task_id: str = ""
) -> list[str]:
    """Groups requested at a broker time (Unix seconds) in `[since, until)`, of one task if it is named."""
    topic = topic_of(topics, RolloutRequest)
    spans = await spans_between(transport, await partitions_of(transport, [topic]), since, until)
    found: dict[str, None] = {}
    async with aclosing(scan_transport(transport, [topic], spans=spans)) as deliveries:
        async for delivery in deliveries:
            if since <= delivery.at < until and task_id in ("", delivery.record.task_id):
                found[delivery.record.group_id] = None
    return list(found)
