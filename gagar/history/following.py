"""Follows a group until it has ended, or the policy versions until one that is waited for.

In: a transport, the topics of a run, what to follow. Out: each record that comes, to `tell`; the history at the end. Kept: that
history. It waits as long as it takes: a run that nobody works on brings nothing.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from gagar.errors import BadRecordError
from gagar.history.choosing import topic_of
from gagar.history.collecting import spans_between
from gagar.history.group import GroupHistory, read_group
from gagar.records import PolicyVersion, TrajectoryTokens
from gagar.stream.handlers import Delivery
from gagar.stream.readers.scans import scan_raw, scan_transport
from gagar.stream.readers.watched import partitions_of
from gagar.stream.routing import to_delivery
from gagar.stream.spec import Topic
from gagar.stream.transport import RawRecord, Transport

Tell = Callable[[Delivery[Any]], None]


async def follow_group(transport: Transport, topics: Sequence[Topic], group_id: str, tell: Tell) -> GroupHistory:
    """The history of a group that has ended; of one that is not there, an empty one at once. Raises UnavailableError."""
    read = [topic for topic in topics if topic.record is not TrajectoryTokens]
    places = await partitions_of(transport, read)
    number = transport.number_of(group_id.encode(), sum(at.topic == read[0].name for at in places))
    versions = topic_of(topics, PolicyVersion)
    chosen = [at for at in places if at.number == number or at.topic == versions.name]
    spans = {at: (end, end) for at, (_, end) in (await spans_between(transport, chosen, 0.0, math.inf)).items()}
    history = await read_group(transport, topics, group_id)
    seen = {delivery.ref for delivery in history.deliveries}
    for delivery in sorted(history.deliveries, key=lambda delivery: delivery.at):
        tell(delivery)
    if history.outcomes or not history.num_records:
        return history
    async with aclosing(scan_raw(transport, chosen, follow=True, spans=spans)) as raws:
        async for raw in raws:
            if raw.at.topic == versions.name:
                _observe(history, raw, versions)
            elif raw.ref not in seen and (found := history.add(raw)) is not None:
                tell(found)
            if history.outcomes:
                break
    return history


def _observe(history: GroupHistory, raw: RawRecord, topic: Topic) -> None:
    try:
        history.observe(to_delivery(raw, topic))
    except BadRecordError:
        return


async def follow_versions(
    transport: Transport, topics: Sequence[Topic], tell: Tell, is_awaited: Callable[[PolicyVersion], bool]
) -> None:
    """Returns with the first version that `is_awaited`, or with the planned end of the run. Raises UnavailableError."""
    async with aclosing(scan_transport(transport, [topic_of(topics, PolicyVersion)], follow=True)) as deliveries:
        async for delivery in deliveries:
            tell(delivery)
            if is_awaited(delivery.record) or delivery.record.is_last:
                return
