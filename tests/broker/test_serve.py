"""A stage process from its start to its end, as the command line runs it."""

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from gagar.cli.run import tell_planned_end
from gagar.cli.up.pipeline import check_no_twin
from gagar.errors import UnavailableError
from gagar.processes.forced_end import end_by_force_after
from gagar.stream.handlers import Transform
from tests.broker.stages import ROOT, stage_process, until_count
from tests.builders import make_request, make_version
from tests.contract.world import (
    OUTCOMES,
    TRAJECTORIES,
    KafkaWorld,
    joined,
    make_run,
    make_stage,
    make_trajectory,
    opened,
    write,
)
from topology.composition import run_loop, serve_handler
from topology.resources import Resources

NOWHERE = "127.0.0.1:9"


TRANSFORM = Transform(lambda request: [make_trajectory(request)])


@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_an_idle_stage_at_once_with_0(world: KafkaWorld, tmp_path: Path, number: signal.Signals) -> None:
    """In a process of its own: a stop sets a timer that ends the process by force."""
    await write(world, [make_request("t-000001")])
    async with stage_process(world, "effect", tmp_path) as stage:
        await until_count(world, TRAJECTORIES, 1)
        stage.send(number)
        assert await stage.ended(5) == 0
        assert "stage ended stage=under-test delivered=1 finished=1" in stage.log.read_text()


def test_a_broker_that_is_not_there_is_a_clear_error_in_time() -> None:
    with pytest.raises(
        UnavailableError,
        match=r"kafka.bootstrap_servers: expected a Kafka cluster that answers at 127.0.0.1:9, got .*; start it",
    ):
        run_loop(serve_handler(make_stage("transform"), Resources(make_run("nowhere", NOWHERE)), TRANSFORM))


@pytest.mark.broker
async def test_topics_that_are_not_there_are_named(kafka_servers: str) -> None:
    with pytest.raises(
        UnavailableError, match="topic rollout-requests: expected it to exist, got nothing; run `gagar topics apply`"
    ):
        await serve_handler(make_stage("transform"), Resources(make_run("no-such-run", kafka_servers)), TRANSFORM)


async def test_journal_and_references_of_a_run_need_its_broker_only_when_opened() -> None:
    resources = Resources(make_run("x", NOWHERE))
    journal = resources.journal(make_stage("learner"))
    with pytest.raises(UnavailableError):
        await journal.open()
    await journal.close()
    references = resources.references()
    with pytest.raises(UnavailableError):
        await references.connect()
    await references.close()


def test_the_edge_loads_nothing_heavy() -> None:
    heavy = ("aiokafka", "kafka", "numpy", "torch", "uvloop")
    code = f"import sys, topology.composition; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_stage_that_has_ended_is_not_ended_by_force_later(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    monkeypatch.setattr("gagar.processes.forced_end.os._exit", ends.append)
    monkeypatch.setattr("gagar.processes.forced_end.logging.shutdown", lambda: None)

    async def stopping() -> None:
        end_by_force_after(0.2)

    run_loop(stopping())
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    assert not ends


@pytest.mark.broker
@pytest.mark.parametrize(("num_steps", "is_told"), [(3, True), (4, False)])
async def test_a_stage_that_is_started_after_the_planned_end_says_that_it_waits(
    world: KafkaWorld, caplog: pytest.LogCaptureFixture, num_steps: int, is_told: bool
) -> None:
    caplog.set_level("INFO")
    await write(world, [make_version(step, is_last=step == 3) for step in range(4)])
    run = make_run(world.name, world.servers)
    await tell_planned_end(replace(run, training=replace(run.training, num_steps=num_steps)))
    assert ("planned end reached step=3 num_steps=3: all but the last evaluation is done; waiting" in caplog.text) == is_told


@pytest.mark.broker
async def test_a_second_pipeline_of_a_run_on_a_cluster_is_refused_while_the_first_is_at_work(
    world: KafkaWorld, tmp_path: Path
) -> None:
    run = make_run(world.name, world.servers, str(tmp_path / "other"))
    sampler = make_stage("transform", (OUTCOMES,), name="sampler")
    async with opened(world) as transport:
        async with joined(transport, sampler):
            with pytest.raises(
                UnavailableError, match=rf"run {world.name}: expected no other `gagar up` of it on .*, got a sampler at work"
            ):
                await asyncio.to_thread(check_no_twin, run, world.kafka, 1.0)
        await asyncio.to_thread(check_no_twin, run, world.kafka)
