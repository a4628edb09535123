"""The yardstick: the same records, produced and consumed by bare aiokafka clients at the same time, a process each.

`python -m tests.bench.raw produce|consume SERVERS RUN NUM_TRAJECTORIES COMPRESSION`. No transactions, no handlers, no
records decoded; the same topics, keys, sizes and content, the same event loop. Each prints the time at which its work began
and ended, as JSON; the producer waits for a line on stdin first.
"""

import asyncio
import json
import sys
import time
from collections import deque
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # noqa: TID251  the yardstick is the bare client

from gagar.records import LogRef, encode
from gagar.stream.spec import Topic
from tests.bench.contents import make_pool
from tests.builders import make_request
from topology.composition import run_loop
from topology.topics import TOKENS_BYTES, TRAJECTORIES, TRAJECTORY_TOKENS

NUM_PARTITIONS = 4
NUM_WARM = 16
GROUP_SIZE = 8
MAX_IN_FLIGHT = 256
"""Records handed over and not yet acknowledged."""


def encoded_pool() -> list[tuple[tuple[Topic, bytes], ...]]:
    """Both records of each trajectory, as bytes."""
    request, ref = make_request("t-000000"), LogRef(topic="trajectory-tokens", partition=3, offset=10_000)
    return [
        (
            (TRAJECTORY_TOKENS, encode(content.tokens_for(request))),
            (TRAJECTORIES, encode(content.trajectory_for(request, ref, ref))),
        )
        for content in make_pool()
    ]


async def produce(servers: str, name: str, num: int, compression: str) -> None:
    """Sends `num` trajectories, and a few before the clock starts."""
    pool = encoded_pool()
    producer = AIOKafkaProducer(bootstrap_servers=servers, compression_type=compression or None, max_request_size=TOKENS_BYTES)
    await producer.start()
    try:
        await _send_all(producer, name, pool, range(NUM_WARM))
        report("ready", time.time())
        await asyncio.to_thread(sys.stdin.readline)
        started = time.time()
        await _send_all(producer, name, pool, range(NUM_WARM, NUM_WARM + num))
        report("started", started)
    finally:
        await producer.stop()


async def _send_all(producer: Any, name: str, pool: list[tuple[tuple[Topic, bytes], ...]], numbers: range) -> None:
    answers: deque[Any] = deque()
    for number in numbers:
        for topic, value in pool[number % len(pool)]:
            key = f"t-{number // GROUP_SIZE:06d}".encode()
            answers.append(await producer.send(f"{name}.{topic.name}", value=value, key=key))
            if len(answers) > MAX_IN_FLIGHT:
                await answers.popleft()
    await asyncio.gather(*answers)


async def consume(servers: str, name: str, num: int) -> None:
    """Reads until all of them are there."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        topics = (TRAJECTORY_TOKENS, TRAJECTORIES)
        consumer.assign([TopicPartition(f"{name}.{topic.name}", n) for topic in topics for n in range(NUM_PARTITIONS)])
        missing = 2 * (NUM_WARM + num)
        report("ready", time.time())
        while missing > 0:
            fetched = await consumer.getmany(timeout_ms=1000)
            missing -= sum(len(records) for records in fetched.values())
        report("ended", time.time())
    finally:
        await consumer.stop()


def report(what: str, at: float) -> None:
    """A line for the parent."""
    print(json.dumps({"what": what, "at": at}), flush=True)  # noqa: T201


def main() -> None:
    kind, servers, name, num, *compression = sys.argv[1:]
    run_loop(produce(servers, name, int(num), *compression) if kind == "produce" else consume(servers, name, int(num)))


if __name__ == "__main__":
    main()
