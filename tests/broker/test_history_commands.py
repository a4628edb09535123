"""`gagar show` and `gagar dead-letters` on a real broker."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gagar.cli.history.dead_letters import dead_letters
from gagar.cli.history.ids import complete_groups
from gagar.cli.history.show import show
from gagar.records import DeadLetter, LogRef, encode
from gagar.stream.readers.scans import scan_raw
from gagar.stream.readers.watched import partitions_of
from tests.builders import make_request, make_verdict, make_version
from tests.contract.world import KafkaWorld, make_trajectory, opened, write
from topology.topics import ALL_TOPICS, TRAJECTORIES

pytestmark = pytest.mark.broker

TOPIC_OF = {topic.record: topic for topic in ALL_TOPICS}


@pytest.fixture
def world(kafka_servers: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> KafkaWorld:
    """A cluster with the topics of a run."""
    world = KafkaWorld(kafka_servers, ALL_TOPICS)
    world.create_topics()
    monkeypatch.chdir(tmp_path)
    return world


def named(world: KafkaWorld) -> list[str]:
    return ["--set", f"kafka.bootstrap_servers={world.servers}", "--set", f"run.name={world.name}"]


def told(command: Any, world: KafkaWorld, *arguments: str) -> Any:
    result = CliRunner().invoke(command, [*arguments, *named(world), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout.splitlines()[-1])


async def trajectories(world: KafkaWorld) -> list[LogRef]:
    async with opened(world) as transport:
        places = await partitions_of(transport, [TRAJECTORIES])
        return [raw.ref async for raw in scan_raw(transport, places)]


def test_a_group_is_shown_and_left_as_files(world: KafkaWorld, tmp_path: Path) -> None:
    request = make_request(group_size=1)
    asyncio.run(write(world, [make_version(0), request, make_trajectory(request, patch="--- a/x\n")], TOPIC_OF))
    [ref] = asyncio.run(trajectories(world))
    asyncio.run(write(world, [make_verdict(trajectory=ref, tokens=None)], TOPIC_OF))
    group = told(show, world, "group", "t-000000", "--workspace", str(tmp_path / "left"))
    assert group["attempts"][0]["verdict"]["trajectory"] == group["attempts"][0]["trajectory"]["ref"] == str(ref)
    assert (tmp_path / "left/candidates/0/patch.diff").read_text() == "--- a/x\n"
    assert told(show, world, "trajectory", str(ref))["sample_index"] == 0
    assert told(show, world, "version", "0")["step"] == 0
    assert told(show, world, "run")["num_requested"] == 1


def test_a_dead_letter_is_listed_and_retried_once(world: KafkaWorld) -> None:
    request = make_request(group_size=1)
    trajectory = make_trajectory(request)
    asyncio.run(write(world, [request, trajectory], TOPIC_OF))
    [ref] = asyncio.run(trajectories(world))
    letter = DeadLetter(stage="verifier", source=ref, error="bad", key=b"t-000000", value=encode(trajectory))
    asyncio.run(write(world, [letter], TOPIC_OF))
    [line] = told(dead_letters, world, "list")["dead_letters"]
    first, second = (told(dead_letters, world, "retry", line["id"])["letters"][0] for _ in range(2))
    assert first["retried_as"]
    assert "was retried already" in second["refusal"]
    assert len(asyncio.run(trajectories(world))) == 2
    assert told(dead_letters, world, "show", line["id"])["retried_as"] == first["retried_as"]


def test_ids_complete_from_the_log(world: KafkaWorld) -> None:
    asyncio.run(write(world, [make_request("t-000007"), make_request("t-000008")], TOPIC_OF))
    group = show.commands["group"]
    with group.make_context("group", named(world), resilient_parsing=True) as context:
        assert sorted(complete_groups(context, group.params[0], "t-0")) == ["t-000007", "t-000008"]
