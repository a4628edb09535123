"""`run_audit` on a real broker: it reads every topic and knows where the logs end."""

import asyncio

import pytest
from msgspec.structs import replace

from gagar.cli.audit import run_audit
from gagar.errors import ConfigError
from gagar.records import LogRef
from gagar.stream.admin import Admin
from tests.builders import make_outcome, make_ref, make_request, make_verdict, make_version
from tests.contract.world import NUM_PARTITIONS, KafkaWorld, make_run, write
from topology import topics

pytestmark = pytest.mark.broker

TOPIC_OF = {topic.record: topic for topic in topics.TOPICS}


class Pipeline(KafkaWorld):
    """A broker with all topics of the pipeline."""

    def create_topics(self) -> None:
        with Admin(self.servers) as admin:
            admin.apply(make_run(self.name), topics.TOPICS)


async def make_pipeline(servers: str, trajectory: LogRef) -> Pipeline:
    """A version and one group that was dropped, whose verdict refers to `trajectory`."""
    world = Pipeline(servers)
    await asyncio.to_thread(world.create_topics)
    request = make_request("t-000000", 0, group_size=1)
    verdict = make_verdict("t-000000", 0, "failed", trajectory=trajectory, tokens=None)
    counts = {"num_requested": 1, "num_valid": 1, "num_passed": 0, "num_clean": 0}
    outcome = make_outcome("t-000000", "dropped", reason="too_few_valid", **counts)
    await write(world, [make_version(0), request], TOPIC_OF)
    [partition] = [number for number, size in (await sizes(world)).items() if size]
    verdict = replace(verdict, request=make_ref("rollout-requests", 0, partition))
    await write(world, [verdict, outcome], TOPIC_OF)
    return world


async def sizes(world: Pipeline) -> dict[int, int]:
    """End offsets of `rollout-requests` by partition."""

    def ask() -> dict[tuple[str, int], int]:
        with Admin(world.servers) as admin:
            return admin.end_offsets({f"{world.name}.rollout-requests": NUM_PARTITIONS})

    return {number: end for (_, number), end in (await asyncio.to_thread(ask)).items()}


async def test_references_past_the_end_of_a_log_are_found(kafka_servers: str) -> None:
    world = await make_pipeline(kafka_servers, make_ref("trajectories", 5))
    report = await run_audit(make_run(world.name, kafka_servers))
    assert report.findings == ["reference trajectories[0]@5: expected an offset in the log [0, 0), got one outside"]
    assert (report.num_requested, report.dropped, report.policy_version) == (1, {"too_few_valid": 1}, 0)


async def test_a_run_without_records_is_clean(kafka_servers: str) -> None:
    world = Pipeline(kafka_servers)
    await asyncio.to_thread(world.create_topics)
    report = await run_audit(make_run(world.name, kafka_servers))
    assert report.is_clean
    assert report.num_requested == 0


async def test_a_run_that_has_no_topics_is_not_called_clean(kafka_servers: str) -> None:
    with pytest.raises(ConfigError, match=r"run.name: expected a run with topics, got 'nowhere' without; name one with --set"):
        await run_audit(make_run("nowhere", kafka_servers))
