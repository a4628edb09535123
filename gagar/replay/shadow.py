"""The answers of a replay as records on topics of their own, beside the live ones: `<run>.replay.<id>.<topic>`.

In: the answers in a replay's directory, in their order. Out: their outputs on the shadows of the stage's output topics, under
the same keys and so in the same partitions, each once, however often this is interrupted: one producer writes them in order,
and what the shadows hold already is counted first. The only part of a replay that writes to a log.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from gagar.records import Record, encode
from gagar.replay.answers import read_answers
from gagar.stream.readers.scans import scan_transport, until_visible
from gagar.stream.routing import key_of
from gagar.stream.spec import Topic
from gagar.stream.transport import Producer, Send, Transport

BATCH = 64
"""Records of a transaction."""


def shadows_of(topics: Sequence[Topic], replay_id: str) -> tuple[Topic, ...]:
    """The topics that stand for these in a replay."""
    return tuple(replace(topic, name=f"replay.{replay_id}.{topic.name}") for topic in topics)


async def publish(transport: Transport, shadows: Sequence[Topic], replay_id: str, directory: Path) -> int:
    """Writes what the shadows do not hold yet; how many records they hold then. Raises UnavailableError."""
    by_record = {topic.record: topic for topic in shadows}
    async with _started(transport, shadows, replay_id) as producer:
        num_there = await _count(transport, shadows)
        records = _records(directory)
        num_records = sum(1 for _ in islice(records, num_there))
        while batch := list(islice(records, BATCH)):
            await producer.begin()
            answers = [await producer.send(_send(by_record[type(record)], record)) for record in batch]
            for answer in answers:
                await answer
            await producer.commit("", {})
            num_records += len(batch)

    async def are_there() -> bool:
        return await _count(transport, shadows) >= num_records

    await until_visible(are_there, f"replay {replay_id}: expected {num_records} records on its topics")
    return num_records


@asynccontextmanager
async def _started(transport: Transport, shadows: Sequence[Topic], replay_id: str) -> AsyncIterator[Producer]:
    """It fences an earlier one of the same replay, and settles what that had open."""
    producer = await transport.start_producer(f"replay.{replay_id}", shadows)
    try:
        yield producer
    finally:
        await producer.close()


def _records(directory: Path) -> Iterator[Record]:
    for answer in read_answers(directory):
        if not answer.is_partial:
            yield from answer.outputs


def _send(topic: Topic, record: Record) -> Send:
    return Send(topic=topic.name, key=key_of(record).encode(), value=encode(record))


async def _count(transport: Transport, shadows: Sequence[Topic]) -> int:
    num_there = 0
    async for _ in scan_transport(transport, shadows):
        num_there += 1
    return num_there
