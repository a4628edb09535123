"""Writes an excerpt: the records of some groups as they lie in the log, and every policy version, since laws span them all.

In: a transport, the topics of a run, group ids. Out: a manifest, and the file that a writer makes. The log is only read.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing

import msgspec

from gagar.excerpts.container import ExcerptWriter, Manifest
from gagar.history.collecting import Collector
from gagar.records import RolloutRequest, RunSettings
from gagar.stream.readers.scans import scan_raw, spans_between
from gagar.stream.readers.watched import partitions_of
from gagar.stream.spec import Topic, topic_of
from gagar.stream.transport import Partition, RawRecord, Transport


class ExportedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What is exported of which run."""

    text: str
    """For people. Example: `group t-000007`."""
    group_ids: Sequence[str]
    settings: RunSettings
    """Of the run."""
    at: float
    """Now, Unix seconds."""


async def export_groups(
    transport: Transport,
    topics: Sequence[Topic],
    selection: ExportedPart,
    writer: ExcerptWriter,
    on_record: Callable[[RawRecord], None],
) -> Manifest:
    """Writes all records of the groups. `topics`: of the stream. `on_record`: called with each. Raises UnavailableError."""
    collector = Collector(transport, topics, selection.group_ids, is_thorough=True)
    requests = topic_of(topics, RolloutRequest).name
    asked: set[bytes] = set()
    async with aclosing(collector.records()) as raws:
        async for raw in raws:
            writer.add(raw)
            on_record(raw)
            if raw.at.topic == requests:
                asked.add(raw.key)
    for topic in topics:
        if not topic.is_grouped:  # read last: what outcomes tell of was published with them
            async with aclosing(scan_raw(transport, await partitions_of(transport, [topic]))) as versions:
                async for raw in versions:
                    writer.add(raw)
                    on_record(raw)
    numbers = {at.number for at in writer.partitions()}
    grouped = [Partition(topic.name, number) for topic in topics if topic.is_grouped for number in sorted(numbers)]
    return writer.finish(
        selection=selection.text,
        exported_at=selection.at,
        num_groups=len(asked),
        settings=selection.settings,
        begins={at: begin for at, (begin, _) in (await spans_between(transport, grouped)).items()},
        missing=sorted(set(collector.missing)),
    )
