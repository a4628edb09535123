"""What a cluster refuses for good ends a stage by name, and the preflight finds it before any stage starts."""

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiokafka.codec  # noqa: TID251  a machine without its library
import pytest
from aiokafka.protocol.produce import ProduceRequest  # noqa: TID251  as a client speaks to an older broker
from msgspec.structs import replace

from gagar.errors import EXIT_REFUSED, ClusterRefusalError, UnavailableError
from gagar.stream.handlers import Transform
from gagar.stream.kafka import client
from gagar.stream.kafka.admin import Admin
from gagar.stream.kafka.preflight import check_coordinators
from tests.broker.own_broker import own_broker
from tests.broker.stages import ROOT
from tests.builders import make_request
from tests.contract.world import (
    DEAD_LETTERS,
    TRAJECTORIES,
    KafkaWorld,
    Process,
    make_stage,
    make_trajectory,
    read,
    write,
)
from tests.runs import write_run

pytestmark = pytest.mark.broker

TRANSFORM = Transform(lambda request: [make_trajectory(request)])
STAGE: Any = make_stage("transform")
NO_COORDINATOR = "transaction.state.log.replication.factor: expected at most 1, the number of brokers, got 3: .*; change it in"


@pytest.fixture(scope="module")
def without_transactions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker alone, which keeps its transactions on three as a broker does unless told otherwise."""
    settings = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
    try:
        with own_broker(tmp_path_factory.mktemp("refusing") / "broker", settings) as address:
            yield address
    except UnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Kafka: {error}")


async def made(servers: str) -> KafkaWorld:
    """A world with topics."""
    world = KafkaWorld(servers)
    await asyncio.to_thread(world.create_topics)
    return world


def preflight(world: KafkaWorld) -> None:
    with Admin(world.kafka) as admin:
        check_coordinators(admin, world.name, DEAD_LETTERS)


async def test_no_command_starts_where_transactions_have_too_few_brokers(without_transactions: str, tmp_path: Path) -> None:
    options = ("--run", str(write_run(tmp_path)), "--set", f"kafka.bootstrap_servers={without_transactions}")
    commands = [("topics", "apply", *options), ("run", "gatherer", *options)]
    for told, code in await asyncio.gather(*(asyncio.to_thread(gagar, *command) for command in commands)):
        assert code == EXIT_REFUSED, told
        [error] = [line for line in told.splitlines() if line.startswith("error: ")]
        assert re.match(f"error: {NO_COORDINATOR}", error), told


def gagar(*arguments: str) -> tuple[str, int]:
    """A command from its start to its end."""
    command = [sys.executable, "-P", "-m", "gagar.cli.main", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.stderr, ended.returncode


async def test_a_stage_waits_for_its_coordinator_and_says_so(
    without_transactions: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "CONNECT_S", 1.0)
    world = await made(without_transactions)
    with pytest.raises(ClusterRefusalError, match=f"^{NO_COORDINATOR}"):
        await asyncio.to_thread(preflight, world)
    async with Process(world, STAGE, TRANSFORM) as process:
        with caplog.at_level(logging.WARNING):
            await process.until(lambda: caplog.text.count("the brokers have no such coordinator now") > 1)
        await asyncio.to_thread(make_transactions_possible, without_transactions)
        await write(world, [make_request("t-000001")])
        await process.until_finished(1)


def make_transactions_possible(servers: str) -> None:
    """As if the brokers that were missing had come."""
    with Admin(KafkaWorld(servers).kafka) as admin:
        configs = {"cleanup.policy": "compact"}
        topic = {"num_partitions": 1, "replication_factor": 1, "configs": configs}
        admin._client.create_topics({"__transaction_state": topic})


async def test_a_bound_of_the_brokers_below_our_transactions_ends_preflight_and_stage(
    kafka_servers: str,
) -> None:
    """Their bound is 15 minutes."""
    world = await made(kafka_servers)
    world.kafka = replace(world.kafka, transaction_timeout_s=450.001)
    with pytest.raises(
        ClusterRefusalError, match=r"InvalidTransactionTimeout; lower it, or raise transaction.max.timeout.ms of the brokers"
    ):
        await asyncio.to_thread(preflight, world)
    async with Process(world, STAGE, TRANSFORM) as process:
        with pytest.raises(ClusterRefusalError, match=r"producer under-test\.\d: .*; lower it, or raise transaction.max"):
            await process.ended()


async def test_a_codec_that_the_brokers_do_not_take_ends_preflight_and_stage(
    kafka_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take zstd from clients of Kafka 2.1 and newer."""
    world = await made(kafka_servers)
    await write(world, [make_request("t-000001")])
    monkeypatch.setattr(ProduceRequest, "_CLASSES", ProduceRequest._CLASSES[:7])
    with pytest.raises(ClusterRefusalError, match=r"preflight to dead-letters: expected records in zstd to be taken, got .*76"):
        await asyncio.to_thread(preflight, world)
    async with Process(world, STAGE, TRANSFORM) as process:
        with pytest.raises(ClusterRefusalError, match=r"to trajectories: expected records in zstd to be taken, got .*76"):
            await process.ended()


async def test_a_codec_that_this_machine_cannot_read_ends_the_stage(
    kafka_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await made(kafka_servers)
    await write(world, [make_request("t-000001")])
    monkeypatch.setattr(aiokafka.codec, "has_zstd", lambda: False)
    async with Process(world, STAGE, TRANSFORM) as process:
        with pytest.raises(
            ClusterRefusalError, match=r"poll: expected records in a codec that this machine can read, got .*zstd"
        ):
            await process.ended()


async def test_a_preflight_on_a_sound_cluster_leaves_nothing_to_read_and_does_not_mind_another(kafka_servers: str) -> None:
    world = await made(kafka_servers)
    await write(world, [make_request("t-000001")])
    await asyncio.gather(*(asyncio.to_thread(preflight, world) for _ in range(3)))
    async with Process(world, STAGE, TRANSFORM) as process:
        await process.until_finished(1)
    assert len(await read(world, TRAJECTORIES)) == 1
    assert await read(world, DEAD_LETTERS) == []


async def test_a_preflight_before_there_are_topics_tries_what_it_can(kafka_servers: str) -> None:
    await asyncio.to_thread(preflight, KafkaWorld(kafka_servers))


async def test_a_stage_is_not_started_by_hand_where_its_records_are_too_large(kafka_servers: str, tmp_path: Path) -> None:
    """Whoever has lowered the bound does so with a topic that is there."""
    name = KafkaWorld(kafka_servers).name
    overrides = (f"kafka.bootstrap_servers={kafka_servers}", f"run.name={name}")
    options = ("--run", str(write_run(tmp_path)), *(f"--set={override}" for override in overrides))
    assert (await asyncio.to_thread(gagar, "topics", "apply", *options))[1] == 0
    await asyncio.to_thread(lower_bound, kafka_servers, f"{name}.groups")
    told, code = await asyncio.to_thread(gagar, "run", "gatherer", *options)
    assert code == EXIT_REFUSED, told
    assert f"error: topic {name}.groups: expected max.message.bytes=16842752 or more, got 1000000; run `gagar topics" in told


def lower_bound(servers: str, topic: str) -> None:
    with Admin(KafkaWorld(servers).kafka) as admin:
        assert admin._set(topic, "max.message.bytes", "1000000") == ""


async def test_no_stage_and_no_start_with_other_settings_gets_in_beside_a_living_run(
    kafka_servers: str, tmp_path: Path
) -> None:
    """Wherever it comes from: the run's settings are on the log. `elsewhere` is another machine's directory and run file."""
    name = KafkaWorld(kafka_servers).name
    (tmp_path / "elsewhere").mkdir()
    here, elsewhere = (
        ("--run", str(write_run(path, f'[kafka]\nbootstrap_servers="{kafka_servers}"\n')), "--set", f"run.name={name}")
        for path in (tmp_path, tmp_path / "elsewhere")
    )
    other = (*elsewhere, "--set", "training.group_size=4", "--set", "verifier.concurrency=7")
    told, code = await asyncio.to_thread(gagar, "run", "verifier", *here)
    assert (code, "expected its settings on topic run-settings, got none; run `gagar topics apply`" in told) == (4, True), told
    assert (await asyncio.to_thread(gagar, "topics", "apply", *here))[1] == 0
    async with (
        at_work("gatherer", here, tmp_path / "log"),
        at_work("grader", (*elsewhere, "--set", "grader.drain_s=9"), tmp_path / "own"),
    ):
        assert "settings of this process alone grader.drain_s: was 4.0, now 9" in (tmp_path / "own").read_text()
        assert (await asyncio.to_thread(gagar, "topics", "apply", *elsewhere))[1] == 0
        started = f"settings that it was started with on .* in {tmp_path}/elsewhere/.gagar/runs/{name} at .* UTC"
        ways_out = {("run", "verifier"): "give this process the run's", ("topics", "apply"): "end all its stages"}
        for command, way_out in ways_out.items():
            told, code = await asyncio.to_thread(gagar, *command, *other)
            assert code == EXIT_REFUSED, told
            assert re.search(f"{started}, got training.group_size: was 8, now 4; {way_out}", told), told
    told, code = await asyncio.to_thread(gagar, "topics", "apply", *other)
    assert (code, f"run {name}: training.group_size: was 8, now 4\n" in told) == (0, True), told
    told, code = await asyncio.to_thread(gagar, "run", "gatherer", *here)
    assert (code, "got training.group_size: was 4, now 8" in told) == (EXIT_REFUSED, True), told


@contextlib.asynccontextmanager
async def at_work(stage: str, options: Sequence[str], log: Path) -> AsyncIterator[None]:
    """`gagar run STAGE` while it is a member of its group."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "gagar.cli.main", "run", stage, *options), cwd=ROOT, stdout=output, stderr=output
        )
    try:
        async with asyncio.timeout(60):
            while "partitions assigned" not in log.read_text():
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.2)
        yield
        process.terminate()
        assert await process.wait() == 0, log.read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
