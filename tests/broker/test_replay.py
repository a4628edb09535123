"""Replays over real topics: what was recorded comes out again, on shadow topics too, and nothing else is touched."""

import asyncio
from pathlib import Path

import pytest

from gagar.cli.replay import create_topics
from gagar.replay.judging import ReplayResult
from gagar.replay.shadow import shadows_of
from gagar.stream.kafka.admin import Admin
from gagar.stream.readers.scans import scan_transport
from gagar.stream.spec import Stage
from tests.audit_runs import make_run
from tests.broker.test_audit_topics import Pipeline, make_pipeline
from tests.contract.world import opened
from topology import topics
from topology.replay import ReplayChoice, StageReplay
from topology.resources import Resources
from topology.stages import ADVANTAGE_PUBLISHER, GATHERER, GRADER

pytestmark = pytest.mark.broker

NUM_ANSWERS = {GATHERER.name: 4, GRADER.name: 2, ADVANTAGE_PUBLISHER.name: 2}


async def replayed(world: Pipeline, stage: Stage, directory: Path, shadow: str = "") -> ReplayResult:
    chosen = ReplayChoice(is_diff=True, shadow=shadow)
    replaying = StageReplay(Resources(world.run), stage, directory, chosen, lambda what, done, total: None)
    return await replaying.run(lambda shadows: create_topics(world.run, shadows))


@pytest.mark.parametrize("stage", [GATHERER, GRADER, ADVANTAGE_PUBLISHER], ids=lambda stage: stage.name)
async def test_a_stage_answers_over_real_topics_as_it_did_and_leaves_them_alone(
    kafka_servers: str, stage: Stage, tmp_path: Path
) -> None:
    world = await make_pipeline(kafka_servers, make_run())
    before = {topic.name: await asyncio.to_thread(world.ends, topic.name) for topic in topics.TOPICS if topic.is_grouped}
    for _ in range(2):
        result = await replayed(world, stage, tmp_path / "replay", shadow="try-1")
        expected = NUM_ANSWERS[stage.name]
        assert (result.records, result.equal, result.changed, result.missing) == (expected, expected, 0, 0)
    assert before == {topic: await asyncio.to_thread(world.ends, topic) for topic in before}
    with Admin(world.kafka) as admin:
        assert admin.committed(world.run.topic(stage.name)) == {}
    async with opened(world) as transport:
        keys = [delivery.key async for delivery in scan_transport(transport, shadows_of(stage.outputs, "try-1"))]
    assert len(keys) == len(set(keys)) == expected


async def test_groups_whose_verdicts_retention_took_are_named(kafka_servers: str, tmp_path: Path) -> None:
    world = await make_pipeline(kafka_servers, make_run())
    await asyncio.to_thread(world.retire, "verdicts")
    result = await replayed(world, GATHERER, tmp_path / "replay")
    assert (result.equal, result.changed) == (0, 0)
    assert set(result.missing_names) == {"t-000000", "t-000001", "t-000002", "e-000001-0000"}
    assert any(line.startswith("verdicts[") for line in result.retired)
