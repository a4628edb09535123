"""What histories rest on, in memory and on Apache Kafka: keys lead to partitions, times to offsets; retries happen once."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from gagar.history.collecting import Collector
from gagar.history.letters import Retried, find_letter, retry_letters
from gagar.history.recent import recent_names
from gagar.records import DeadLetter, LogRef, encode
from gagar.stream.memory.transport import MemoryTransport
from gagar.stream.readers.scans import scan_raw, spans_between
from gagar.stream.readers.watched import partitions_of
from gagar.stream.retries import mark_in
from gagar.stream.spec import Topic
from gagar.stream.transport import RawRecord, Send
from tests.builders import make_request, make_verdict
from tests.contract.world import KafkaWorld, World, make_tokens, make_trajectory, opened, write
from tests.logs import NUM_PARTITIONS, empty_log
from topology.stages import STAGES
from topology.topics import ALL_TOPICS, DEAD_LETTERS, ROLLOUT_REQUESTS, TOPICS, TRAJECTORIES

TOPIC_OF = {topic.record: topic for topic in ALL_TOPICS}


class LogWorld:
    """In memory, with all topics of a run."""

    def __init__(self) -> None:
        self.log = empty_log()

    def transport(self, member: str = "") -> MemoryTransport:
        return MemoryTransport(self.log, member)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
async def world(request: pytest.FixtureRequest) -> Any:
    """An empty cluster with all topics of a run."""
    if request.param == "memory":
        return LogWorld()
    kafka = KafkaWorld(request.getfixturevalue("kafka_servers"), ALL_TOPICS, NUM_PARTITIONS)
    await asyncio.to_thread(kafka.create_topics)
    return kafka


async def raws_of(world: World, topic: Topic) -> list[RawRecord]:
    async with opened(world) as transport:
        places = await partitions_of(transport, [topic])
        return [raw async for raw in scan_raw(transport, places)]


async def rejected(world: World) -> LogRef:
    """A trajectory and its dead letter; the answer is where that lies."""
    request = make_request(group_size=1)
    trajectory = make_trajectory(request)
    await write(world, [request, trajectory], TOPIC_OF)
    [raw] = await raws_of(world, TRAJECTORIES)
    letter = DeadLetter(stage="verifier", source=raw.ref, error="bad", key=raw.key, value=encode(trajectory))
    await write(world, [letter], TOPIC_OF)
    [found] = await raws_of(world, DEAD_LETTERS)
    return found.ref


async def retry(world: World, refs: Sequence[LogRef]) -> list[Retried]:
    async with opened(world) as transport, aclosing(retry_letters(transport, TOPICS, STAGES, refs)) as found:
        return [retried async for retried in found]


async def test_a_key_leads_to_the_partition_that_producers_write_it_to(world: World) -> None:
    keys = [f"t-{i:06d}".encode() for i in range(40)] + ["\u00e9\u2028".encode(), b"\xff\x00", b"x" * 300]
    await write(world, [Send(topic=ROLLOUT_REQUESTS.name, key=key, value=b"v") for key in keys], TOPIC_OF)
    raws = await raws_of(world, ROLLOUT_REQUESTS)
    async with opened(world) as transport:
        assert {raw.key: raw.at.number for raw in raws} == {key: transport.number_of(key, NUM_PARTITIONS) for key in keys}
    assert {raw.at.number for raw in raws} == set(range(NUM_PARTITIONS))


async def test_a_time_leads_to_the_first_record_of_that_time_or_later(world: World) -> None:
    for number in range(3):
        await write(world, [Send(topic=ROLLOUT_REQUESTS.name, key=b"t-000000", value=b"%d" % number)], TOPIC_OF)
        await asyncio.sleep(0.05)
    first, second, third = await raws_of(world, ROLLOUT_REQUESTS)
    async with opened(world) as transport:
        [(begin, end)] = (await spans_between(transport, [first.at], second.time, third.time)).values()
        assert first.offset < begin <= second.offset < end <= third.offset
        [(_, last)] = (await spans_between(transport, [first.at], third.time + 1000.0, third.time + 2000.0)).values()
        assert last > third.offset


async def test_everything_of_a_group_is_collected_as_it_lies_there(world: World) -> None:
    for group_id in ("t-000000", "t-000001", "t-000002", "t-000003"):
        request = make_request(group_id, group_size=1)
        await write(world, [request, make_tokens(request)], TOPIC_OF)
        tokens = next(
            raw.ref for raw in await raws_of(world, TOPIC_OF[type(make_tokens(request))]) if raw.key == group_id.encode()
        )
        await write(world, [make_trajectory(request, tokens=tokens)], TOPIC_OF)
        trajectory = next(raw.ref for raw in await raws_of(world, TRAJECTORIES) if raw.key == group_id.encode())
        await write(world, [make_verdict(group_id, trajectory=trajectory, tokens=tokens)], TOPIC_OF)
    async with opened(world) as transport:
        collector = Collector(transport, TOPICS, ["t-000002"])
        raws = [raw async for raw in collector.records()]
        names = await recent_names(transport, ROLLOUT_REQUESTS, lambda delivery: delivery.key)
    assert sorted(raw.at.topic for raw in raws) == ["rollout-requests", "trajectories", "trajectory-tokens", "verdicts"]
    assert {raw.key for raw in raws} == {b"t-000002"}
    assert collector.missing == []
    assert set(names) == {"t-000000", "t-000001", "t-000002", "t-000003"}


async def test_a_dead_letter_is_retried_once_in_its_partition(world: World) -> None:
    letter = await rejected(world)
    [first] = await retry(world, [letter])
    [second] = await retry(world, [letter])
    assert first.retried_as is not None
    assert "was retried already" in second.refusal
    original, copy = await raws_of(world, TRAJECTORIES)
    assert (copy.ref, copy.at, copy.value) == (first.retried_as, original.at, original.value)
    mark = mark_in(copy.headers)
    assert mark is not None
    assert (mark.source, mark.letter) == (original.ref, letter)
    async with opened(world) as transport:
        assert (await find_letter(transport, TOPICS, letter)).retried_as == copy.ref


async def test_of_several_who_retry_at_the_same_time_one_writes(world: World) -> None:
    letter = await rejected(world)
    await asyncio.gather(*(retry(world, [letter]) for _ in range(4)), return_exceptions=True)
    await retry(world, [letter])
    assert len(await raws_of(world, TRAJECTORIES)) == 2
