"""Records that are gone before they were read, and whole stages that end with a clear error: on the real topology."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gagar.cli.run_file import open_run
from gagar.cli.topics.planning import apply_topology
from gagar.config import KafkaTable
from gagar.errors import BadRecordError, GagarError
from gagar.groups.gathering import Gather
from gagar.records import LogRef, Record, RolloutRequest, Trajectory, Verdict
from gagar.stream.handlers import Delivery, Effect
from gagar.stream.journal import LogJournal
from gagar.stream.kafka.admin import Admin
from gagar.stream.readers.watched import partitions_of
from gagar.stream.spec import Topic
from gagar.stream.transport import Send
from tests.broker.stages import ROOT
from tests.builders import make_request, make_verdict
from tests.contract.world import (
    FAST,
    NUM_PARTITIONS,
    KafkaWorld,
    Process,
    commit_zeros,
    make_run,
    make_tokens,
    make_trajectory,
    opened,
    read,
)
from tests.contract.world import write as write_to
from tests.runs import write_run
from topology import topics
from topology.stages import GATHERER, LEARNER, VERIFIER

pytestmark = pytest.mark.broker

TOPIC_OF = {topic.record: topic for topic in topics.TOPICS}
SIZE = 2
GRACE_S = 1.0
DEADLINE_S = 12.0
"""From the requests: enough for all that happens before."""


@pytest.fixture
async def world(kafka_servers: str) -> KafkaWorld:
    """A cluster with the topology's topics."""
    world = KafkaWorld(kafka_servers)
    await asyncio.to_thread(create_topics, world)
    return world


def create_topics(world: KafkaWorld) -> None:
    with Admin(KafkaTable(bootstrap_servers=world.servers)) as admin:
        admin.apply(make_run(world.name), topics.TOPICS)
        commit_zeros(admin, make_run(world.name), topics.TOPICS)


def retire(world: KafkaWorld, topic: Topic) -> None:
    """Takes all that there is of a topic, as retention would."""
    from kafka import TopicPartition  # noqa: TID251  no command of ours takes records away

    with Admin(KafkaTable(bootstrap_servers=world.servers)) as admin:
        ends = admin.end_offsets({f"{world.name}.{topic.name}": NUM_PARTITIONS})
        admin._client.delete_records({TopicPartition(*at): end for at, end in ends.items()})


async def write(world: KafkaWorld, entries: Sequence[Record | Send]) -> None:
    await write_to(world, entries, TOPIC_OF)


class Passing(Effect):
    """The verifier without its sandbox: everything passes but the first sample of each group."""

    async def handle(self, delivery: Delivery[Trajectory], /) -> Sequence[Verdict]:
        trajectory = delivery.record
        status: Any = "passed" if trajectory.sample_index else "failed"
        return [
            make_verdict(
                trajectory.group_id,
                trajectory.sample_index,
                status,
                request=trajectory.attempt.request,
                trajectory=delivery.ref,
            )
        ]


def requests(group_ids: Sequence[str]) -> list[RolloutRequest]:
    return [make_request(group, i, group_size=SIZE, deadline_s=DEADLINE_S) for group in group_ids for i in range(SIZE)]


async def trajectories(world: KafkaWorld, group_ids: Sequence[str]) -> list[Trajectory]:
    """Of every request of the groups."""
    found = await read(world, topics.ROLLOUT_REQUESTS)
    return [make_trajectory(delivery) for delivery in found if delivery.key in group_ids]


async def test_groups_that_retention_overtook_are_reported_and_end_as_lost(
    world: KafkaWorld, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [f"t-{number:06d}" for number in range(12)]
    early, lost, late = groups[:4], groups[4:8], groups[8:]
    await write(world, requests(groups))
    async with Process(world, GATHERER, Gather(GRACE_S)) as gatherer:
        await write(world, await trajectories(world, early))
        async with Process(world, VERIFIER, Passing()) as verifier:
            await verifier.until_finished(SIZE * len(early))
        await write(world, await trajectories(world, lost))
        await asyncio.to_thread(retire, world, topics.TRAJECTORIES)
        await write(world, await trajectories(world, late))
        async with Process(world, VERIFIER, Passing()) as verifier:
            await verifier.until_finished(SIZE * len(late))
            missing = verifier.runtime.counters.missing
        await gatherer.until_finished(SIZE * len(groups) + SIZE * len(early + late), DEADLINE_S + 20)
    assert missing >= SIZE * len(lost)
    assert "records lost before they were read reader=verifier." in caplog.text
    outcomes = await read(world, topics.OUTCOMES)
    assert sorted((d.key, d.record.kind, d.record.reason) for d in outcomes) == [(key, "dropped", "lost") for key in lost]
    assert sorted(d.key for d in await read(world, topics.GROUPS)) == early + late


async def test_a_stage_that_missed_records_that_stand_for_groups_stops(world: KafkaWorld) -> None:
    await write(world, requests(["t-000001"]))
    await asyncio.to_thread(retire, world, topics.ROLLOUT_REQUESTS)
    async with Process(world, GATHERER, Gather(GRACE_S)) as gatherer:
        with pytest.raises(
            GagarError, match=r"expected rollout-requests\[\d\] to hold offsets 0 to \d, got a log that begins at"
        ):
            await gatherer.ended()


async def test_a_learner_that_missed_advantages_stops_and_one_that_missed_tokens_is_told_which(world: KafkaWorld) -> None:
    await write(world, [make_tokens(request) for request in requests(["t-000001"])])
    await asyncio.to_thread(retire, world, topics.TRAJECTORY_TOKENS)
    await write(world, [Send(topic="advantages", key=b"t-000001", value=b"x")])
    await asyncio.to_thread(retire, world, topics.ADVANTAGES)
    journal = LogJournal(LEARNER, world.transport(), topics.DEAD_LETTERS, FAST)
    await journal.open()
    await journal.seek({})
    with pytest.raises(GagarError, match=r"learner: expected advantages\[\d\] to hold offsets 0 to 1, got a log that begins"):
        await poll_on(journal)
    async with opened(world) as transport:
        ends = {at.number: end for at, end in (await ends_of(transport)).items()}
    [number] = [number for number, end in ends.items() if end]
    with pytest.raises(BadRecordError, match="expected a record, got none: the log begins at"):
        await journal.references.read(
            [LogRef(topic="trajectory-tokens", partition=number, offset=0)], topics.TRAJECTORY_TOKENS.record
        )
    await journal.close()


async def poll_on(journal: LogJournal) -> None:
    async with asyncio.timeout(20):
        while True:
            await journal.poll(0.2)


async def ends_of(transport: Any) -> Any:
    reader = await transport.open_reader(await partitions_of(transport, [topics.TRAJECTORY_TOKENS]))
    try:
        return await reader.ends()
    finally:
        await reader.close()


async def test_a_stage_that_dead_letters_too_much_exits_with_2_and_says_what_to_do(world: KafkaWorld, tmp_path: Path) -> None:
    run_file = await asyncio.to_thread(write_run, tmp_path, f'[kafka]\nbootstrap_servers="{world.servers}"\n')
    poison = [Send(topic="graded-groups", key=f"t-{number:06d}".encode(), value=b"\xc1") for number in range(40)]
    await write(world, poison)
    await asyncio.to_thread(apply_topology, open_run(str(run_file), (f"run.name={world.name}",)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gagar.cli.main", "run", "advantage-publisher"),
        *("--run", str(run_file), "--set", f"run.name={world.name}"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2, output.decode()
    assert "error: stage advantage-publisher: expected at most 32 dead letters in a row" in output.decode()
    assert "read the errors in dead-letters, mend the stage, start it again" in output.decode()
    assert len(await read(world, topics.DEAD_LETTERS)) == len(await read(world, topics.OUTCOMES)) >= 33
