"""A part of a run goes from one run of a real cluster into another; a stopped stage is moved there."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gagar.cli.audit import run_audit
from gagar.cli.topics.excerpts import Asked, put_in, write_excerpt
from gagar.cli.topics.group import topics as command
from gagar.config import KafkaTable
from gagar.errors import ConfigError, UnavailableError
from gagar.excerpts.container import ExcerptFile, ExcerptWriter
from gagar.stream.handlers import Transform
from gagar.stream.kafka.admin import Admin
from gagar.stream.transport import Partition
from tests.audit_runs import make_run
from tests.broker.test_audit_topics import Pipeline, write
from tests.builders import make_request
from tests.contract.world import (
    REQUESTS,
    TRAJECTORIES,
    KafkaWorld,
    Process,
    committed,
    make_stage,
    make_trajectory,
    read,
)
from tests.contract.world import make_run as make_run_file
from tests.contract.world import write as write_to
from tests.runs import write_run
from topology.resources import Resources
from topology.settings import check_settings, write_settings
from topology.topics import ALL_TOPICS, TRAJECTORY_TOKENS

pytestmark = pytest.mark.broker

IDS = ("t-000000", "t-000001", "t-000002", "e-000001-0000")


def export(world: Pipeline, path: Path, *ids: str) -> None:
    with path.open("xb") as file:
        asked = Asked(group_ids=ids, step=None, since=0.0, until=0.0)
        asyncio.run(write_excerpt(Resources(world.run), asked, ExcerptWriter(file)))


def import_as(servers: str, name: str, path: Path) -> Any:
    """The run that it has become."""
    run, file = make_run_file(name, servers), ExcerptFile(path)
    try:
        put_in(run, run.kafka, file, file.offsets(), path.name)
    finally:
        file.close()
    return run


@pytest.fixture
def world(kafka_servers: str) -> Pipeline:
    """A run with records and settings."""
    world = Pipeline(kafka_servers)
    with Admin(KafkaTable(bootstrap_servers=kafka_servers)) as admin:
        admin.apply(world.run, ALL_TOPICS)
    asyncio.run(write(world, make_run(), {}))
    asyncio.run(write_settings(Resources(world.run)))
    return world


def test_an_imported_part_is_clean_keeps_its_times_and_has_no_stage(world: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "part.zip"
    export(world, path, *IDS)
    run = import_as(world.servers, f"{world.name}-there", path)
    result = asyncio.run(run_audit(run))
    assert result.findings == []
    assert (result.num_requested, result.num_followed > 0) == (4, True)
    assert times(world, world.name) == times(world, run.run.name)
    with pytest.raises(ConfigError, match=r"got one that was imported from part.zip"):
        asyncio.run(check_settings(Resources(run)))
    with pytest.raises(ConfigError, match="expected a run without records"):
        import_as(world.servers, run.run.name, path)


def times(world: Pipeline, name: str) -> list[tuple[str, float]]:
    other = KafkaWorld(world.servers)
    other.name = name
    return sorted((delivery.key, delivery.at) for delivery in asyncio.run(read(other, REQUESTS)))


def test_what_retention_had_taken_there_is_before_the_beginning_here(world: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "part.zip"
    world.retire(TRAJECTORY_TOKENS.name)
    export(world, path, *IDS)
    run = import_as(world.servers, f"{world.name}-there", path)
    result = asyncio.run(run_audit(run))
    assert result.findings == []
    assert result.num_retired_references > 0


def test_a_part_that_is_imported_can_be_exported_again_and_says_the_same(world: Pipeline, tmp_path: Path) -> None:
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    export(world, first, "t-000001")
    again = Pipeline(world.servers)
    again.name = import_as(world.servers, f"{world.name}-there", first).run.name
    export(again, second, "t-000001")
    found = []
    for path in (first, second):
        file = ExcerptFile(path)
        rows = [(member.topic, row.time_ms, row.key) for member in file.manifest.members for row in file.rows(member)]
        found.append(sorted(rows))
        file.close()
    assert found[0] == found[1]


async def test_a_stage_is_moved_once_it_has_stopped(kafka_servers: str, tmp_path: Path) -> None:
    world, stage = KafkaWorld(kafka_servers), make_stage("effect", (TRAJECTORIES,), name="verifier", outputs=(REQUESTS,))
    await asyncio.to_thread(world.create_topics)
    requests = [make_request(f"t-{number:06d}") for number in range(12)]
    await write_to(world, [make_trajectory(request) for request in requests])
    run = write_run(tmp_path)
    options = ["--yes", "--json", "--run", str(run), "--set", f"run.name={world.name}"]
    options += ["--set", f"kafka.bootstrap_servers={kafka_servers}"]

    def reset(*where: str) -> Any:
        return CliRunner().invoke(command, ["reset", "verifier", "--to", *where, *options])

    async with Process(world, stage, Transform(lambda trajectory: [])) as process:
        await process.until_finished(12)
        refused = await asyncio.to_thread(reset, "earliest")
        assert isinstance(refused.exception, UnavailableError)
    before = await committed(world, stage)
    told = json.loads((await asyncio.to_thread(reset, "earliest")).stdout.splitlines()[-1])
    assert told["moved"]
    assert {at: one.offset for at, one in (await committed(world, stage)).items()} == dict.fromkeys(before, 0)
    async with Process(world, stage, Transform(lambda trajectory: [])) as process:
        await process.until_finished(12)
    at = next(Partition(delivery.ref.topic, delivery.ref.partition) for delivery in await read(world, TRAJECTORIES))
    told = json.loads((await asyncio.to_thread(reset, f"{at}@0")).stdout.splitlines()[-1])
    assert [one["partition"] for one in told["partitions"]] == [str(at)]
