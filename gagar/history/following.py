"""Follows a group until it has ended, or the policy versions until the one that is waited for.

In: a transport, the topics of a run, what to follow. Out: each record that comes, to `tell`; the history at the end. Kept: that
history. It waits as long as it takes: a run that nobody works on brings nothing.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from gagar.errors import BadRecordError
from gagar.history.group import GroupHistory, ended_as, read_group
from gagar.history.plain import moment, one_line, printable
from gagar.history.steps import VersionTable
from gagar.records import DeadLetter, Outcome, PolicyVersion, Trajectory, TrajectoryTokens, Verdict
from gagar.stream.handlers import Delivery
from gagar.stream.readers.scans import scan_raw, scan_transport, spans_between
from gagar.stream.readers.watched import partitions_of
from gagar.stream.routing import to_delivery
from gagar.stream.spec import Topic, topic_of
from gagar.stream.transport import Partition, RawRecord, Transport

Tell = Callable[[Delivery[Any]], None]


async def follow_group(
    transport: Transport, topics: Sequence[Topic], group_id: str, tell: Tell, sample: int | None = None
) -> GroupHistory:
    """The history of a group that has ended, or of which a sample has its verdict; of one that is not there, an empty one at
    once. Raises UnavailableError."""
    chosen = await _partitions(transport, topics, group_id)
    ends = await spans_between(transport, chosen)
    history = await read_group(transport, topics, group_id)
    for delivery in sorted(history.deliveries, key=lambda delivery: delivery.at):
        tell(delivery)
    if history.num_records and not _has_ended(history, sample):
        spans = {at: (end, end) for at, (_, end) in ends.items()}
        async with aclosing(scan_raw(transport, chosen, follow=True, spans=spans)) as raws:
            await _follow(history, raws, topic_of(topics, PolicyVersion), tell, sample)
        history = await read_group(transport, topics, group_id)  # topics are followed side by side: some may lag behind
    return history


async def _partitions(transport: Transport, topics: Sequence[Topic], group_id: str) -> list[Partition]:
    """Where records of a group come to lie, and policy versions."""
    read = [topic for topic in topics if topic.record is not TrajectoryTokens]
    places, ungrouped = await partitions_of(transport, read), {topic.name for topic in read if not topic.is_grouped}
    num_partitions = len({at.number for at in places if at.topic not in ungrouped})
    number = transport.number_of(group_id.encode(), num_partitions)
    return [at for at in places if at.number == number or at.topic in ungrouped]


def _has_ended(history: GroupHistory, sample: int | None) -> bool:
    return bool(history.outcomes) or any(found.record.sample_index == sample for found in history.of(Verdict))


async def _follow(
    history: GroupHistory, raws: AsyncIterator[RawRecord], versions: Topic, tell: Tell, sample: int | None
) -> None:
    """Takes in what comes until the group, or the sample, has ended."""
    seen = {delivery.ref for delivery in history.deliveries}
    async for raw in raws:
        if raw.at.topic == versions.name:
            _observe(history, raw, versions)
        elif raw.ref not in seen and (found := history.add(raw)) is not None:
            tell(found)
        if _has_ended(history, sample):
            return


def _observe(history: GroupHistory, raw: RawRecord, topic: Topic) -> None:
    try:
        history.observe(to_delivery(raw, topic))
    except BadRecordError:
        return


async def follow_versions(transport: Transport, topics: Sequence[Topic], tell: Tell, step: int | None) -> None:
    """Returns when a version of that step or a later one counts, or with the planned end of the run; without a step only with
    that. Raises UnavailableError."""
    topic = topic_of(topics, PolicyVersion)
    places = await partitions_of(transport, [topic])
    spans = {at: (end, end) for at, (_, end) in (await spans_between(transport, places)).items()}
    table = await VersionTable.read(transport, topics)
    for version in table.versions:
        tell(version.delivery)
    if not any(version.survives and _is_awaited(version.record, step) for version in table.versions):
        async with aclosing(scan_transport(transport, [topic], follow=True, spans=spans)) as deliveries:
            await _follow_lineage(table, deliveries, tell, step)


async def _follow_lineage(
    table: VersionTable, deliveries: AsyncIterator[Delivery[PolicyVersion]], tell: Tell, step: int | None
) -> None:
    """Tells what the table has not got yet, until the one that is awaited."""
    seen = {version.delivery.ref for version in table.versions}
    async for delivery in deliveries:
        if delivery.ref in seen:
            continue
        tell(delivery)
        record = delivery.record
        table.lineage.observe(record)
        if table.lineage.survives(record.run_id, record.step) and _is_awaited(record, step):
            return


def _is_awaited(version: PolicyVersion, step: int | None) -> bool:
    return version.is_last or (step is not None and version.step >= step)


def line_of(delivery: Delivery[Any]) -> str:
    """A record in a line. Example: `2026-01-31 12:00:00 UTC verdicts[1]@17 sample 3: passed`."""
    record, parts = delivery.record, [moment(delivery.at), str(delivery.ref)]
    if hasattr(record, "sample_index"):
        parts.append(f"sample {record.sample_index}:")
    if isinstance(record, Trajectory):
        parts.append(record.attempt.status)
    elif isinstance(record, Verdict):
        parts.append(f"{record.status} {one_line(record.reason)}")
    elif isinstance(record, Outcome):
        parts.append(ended_as(record))
    elif isinstance(record, PolicyVersion):
        parts.append(f"version {record.version}, step {record.step} of run {printable(record.run_id)}")
    elif isinstance(record, DeadLetter):
        parts.append(f"{printable(record.stage)}: {one_line(record.error)}")
    return " ".join(parts).rstrip()
