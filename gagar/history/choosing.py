"""Which groups are meant: those of a task, of a step, or requested in a span of time.

In: a transport, the topics of a run, what is asked for. Out: group ids or outcomes, each group once. Kept: what is found.
"""

import math
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from gagar.groups.lineage import Lineage
from gagar.history.collecting import spans_between
from gagar.records import Outcome, PolicyVersion, RolloutRequest
from gagar.stream.readers.scans import scan_transport
from gagar.stream.readers.watched import partitions_of
from gagar.stream.spec import Topic
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


async def outcomes_of_step(transport: Transport, topics: Sequence[Topic], step: int) -> list[Outcome]:
    """The surviving outcomes that the learner wrote at a step: of the groups that it trained, and of those that it dropped."""
    lineage = Lineage()
    found: dict[str, Outcome] = {}
    async with aclosing(scan_transport(transport, [topic_of(topics, PolicyVersion)])) as deliveries:
        async for delivery in deliveries:
            lineage.observe(delivery.record)
    async with aclosing(scan_transport(transport, [topic_of(topics, Outcome)])) as deliveries:
        async for delivery in deliveries:
            outcome = delivery.record
            if outcome.run_id and outcome.step == step and lineage.survives(outcome.run_id, step):
                found[outcome.group_id] = outcome
    return list(found.values())


def topic_of(topics: Sequence[Topic], record_type: type[Any]) -> Topic:
    """The one that carries records of a type."""
    return next(topic for topic in topics if topic.record is record_type)
