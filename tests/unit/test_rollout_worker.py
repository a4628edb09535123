"""The rollout worker: one trajectory for each request, with the newest policy, by the deadline."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gagar.agent.loop import Tools
from gagar.config import convert
from gagar.errors import BadRecordError, ConfigError, UnavailableError
from gagar.records import LogRef, PolicyVersion, RolloutRequest, Trajectory, TrajectoryTokens
from gagar.stream.handlers import Delivery, Linked, Output
from producers.rollout_worker import Config, MakeRollouts
from tests.builders import make_delivery, make_request, make_run
from tests.rollouts import FakeChat, FakeEngine, FakeSandbox, make_task, publish
from topology.resources import Resources


class NoReferences:
    async def read(self, refs: Any, record_type: Any, /) -> list[Any]:
        raise NotImplementedError


def make_worker(directory: Path, engine: FakeEngine, sandbox: FakeSandbox, **config: Any) -> MakeRollouts:
    for name, task_id in (("a", "task"), ("b", "held")):
        (directory / name).write_bytes(msgspec.json.encode(make_task(task_id=task_id)))
    resources = Resources(make_run(directory))
    tools = Tools(engine, FakeChat(), sandbox)
    return MakeRollouts(resources.run.training, Config(**config), resources.tasks, tools)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def sandbox() -> FakeSandbox:
    return FakeSandbox()


@pytest.fixture
async def worker(tmp_path: Path, engine: FakeEngine, sandbox: FakeSandbox) -> AsyncIterator[MakeRollouts]:
    opened = make_worker(tmp_path, engine, sandbox, concurrency=2, evaluation_temperature=0.5)
    await opened.open(NoReferences())
    yield opened
    await opened.close()


def version_in(path: Path, version: int = 1, run_id: str = "a") -> PolicyVersion:
    directory = path / f"{run_id}-{version}"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(b"weights")
    return publish(directory, version, run_id)


def request(sample_index: int = 0, seconds: float = 60.0, **fields: Any) -> Delivery[RolloutRequest]:
    record = make_request("t-1", sample_index, deadline_s=seconds, **fields)
    return make_delivery(record, "rollout-requests", offset=sample_index)


def trajectory_of(outputs: Any) -> Trajectory:
    (output,) = outputs
    made: Output = (
        output.then(LogRef(topic="trajectory-tokens", partition=0, offset=1)) if isinstance(output, Linked) else output
    )
    assert isinstance(made, Trajectory)
    return made


async def test_an_attempt_is_its_tokens_and_a_trajectory_that_refers_to_them(worker: MakeRollouts, tmp_path: Path) -> None:
    worker.observe(version_in(tmp_path, 4))
    (output,) = await worker.handle(request())
    assert isinstance(output, Linked)
    assert isinstance(output.first, TrajectoryTokens)
    trajectory = trajectory_of([output])
    assert (trajectory.attempt.status, trajectory.task_id, trajectory.attempt.policy_version_min) == ("completed", "task", 4)


async def test_tasks_of_both_files_are_known_and_others_are_bad_records(worker: MakeRollouts, tmp_path: Path) -> None:
    worker.observe(version_in(tmp_path))
    assert trajectory_of(await worker.handle(request(task_id="held"))).task_id == "held"
    with pytest.raises(BadRecordError, match=r"rollout-requests\[0\]@0: expected a task of \[tasks\], got 'other'"):
        await worker.handle(request(task_id="other"))


async def test_nothing_is_sampled_before_a_published_version(worker: MakeRollouts, engine: FakeEngine, tmp_path: Path) -> None:
    waiting = asyncio.create_task(worker.handle(request()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert engine.prompts == []
    assert not waiting.done()
    worker.observe(version_in(tmp_path, 0))
    assert trajectory_of(await waiting).attempt.policy_version_min == 0


async def test_a_request_past_its_deadline_ends_as_timeout_with_nothing_sampled(
    worker: MakeRollouts, engine: FakeEngine, tmp_path: Path
) -> None:
    worker.observe(version_in(tmp_path))
    trajectory = trajectory_of(await worker.handle(request(seconds=-1)))
    assert (trajectory.attempt.status, trajectory.infrastructure, trajectory.attempt.tokens) == ("timeout", True, None)
    assert engine.prompts == []
    assert trajectory.times.agent_s == 0.0


async def test_a_request_that_waits_for_a_place_ends_at_its_deadline(
    worker: MakeRollouts, engine: FakeEngine, tmp_path: Path
) -> None:
    worker.observe(version_in(tmp_path))
    engine.block = asyncio.Event()
    running = [asyncio.create_task(worker.handle(request(index))) for index in range(2)]
    while len(engine.prompts) < 2:
        await asyncio.sleep(0.001)
    trajectory = trajectory_of(await worker.handle(request(2, seconds=0.05)))
    assert (trajectory.attempt.status, len(engine.prompts)) == ("timeout", 2)
    assert "expected a place before it" in trajectory.failure
    assert (trajectory.infrastructure, trajectory.times.agent_s, trajectory.attempt.tokens) == (True, 0.0, None)
    assert trajectory.times.queue_s == pytest.approx(trajectory.duration_s)
    assert trajectory.duration_s >= 0.04
    engine.block.set()
    assert [trajectory_of(await task).attempt.status for task in running] == ["completed", "completed"]


async def test_a_request_that_waits_for_a_policy_ends_at_its_deadline(worker: MakeRollouts, engine: FakeEngine) -> None:
    trajectory = trajectory_of(await worker.handle(request(seconds=0.05)))
    assert (trajectory.attempt.status, trajectory.infrastructure, engine.prompts) == ("timeout", True, [])
    assert trajectory.failure == "deadline: expected a policy before it, got none"
    assert trajectory.times.agent_s == 0.0
    assert trajectory.times.queue_s == pytest.approx(trajectory.duration_s)


async def test_the_wait_for_a_place_is_not_the_agents_time(worker: MakeRollouts, engine: FakeEngine, tmp_path: Path) -> None:
    """It waits for longer than all of its own time."""
    worker.observe(version_in(tmp_path))
    engine.block = asyncio.Event()
    running = [asyncio.create_task(worker.handle(request(index))) for index in range(2)]
    while len(engine.prompts) < 2:
        await asyncio.sleep(0.001)
    waiting = asyncio.create_task(worker.handle(request(2, agent_timeout_s=0.05)))
    await asyncio.sleep(0.1)
    engine.block.set()
    trajectory = trajectory_of(await waiting)
    assert trajectory.attempt.status == "completed"
    assert trajectory.times.queue_s > 0.05
    assert trajectory.times.total_s == pytest.approx(trajectory.duration_s)
    assert trajectory.started_at == pytest.approx(time.time() - trajectory.duration_s, abs=1.0)
    await asyncio.gather(*running)


async def test_no_more_attempts_than_places_run_at_once(worker: MakeRollouts, engine: FakeEngine, tmp_path: Path) -> None:
    worker.observe(version_in(tmp_path))
    engine.block = asyncio.Event()
    tasks = [asyncio.create_task(worker.handle(request(index))) for index in range(5)]
    while len(engine.prompts) < 2:
        await asyncio.sleep(0.001)
    engine.block.set()
    assert len({trajectory_of(await task).sample_index for task in tasks}) == 5


async def test_an_outage_is_retried_before_the_deadline_and_ends_as_infrastructure_after_it(
    worker: MakeRollouts, engine: FakeEngine, tmp_path: Path
) -> None:
    worker.observe(version_in(tmp_path))
    engine.answers = [UnavailableError("engine: down")]
    delivery = request(seconds=0.2)
    with pytest.raises(UnavailableError, match="engine: down"):
        await worker.handle(delivery)
    await asyncio.sleep(0.25)
    trajectory = trajectory_of(await worker.handle(delivery))
    assert (trajectory.attempt.status, trajectory.infrastructure, trajectory.failure) == ("timeout", True, "engine: down")


async def test_a_refused_first_version_is_an_outage_not_a_sample(
    worker: MakeRollouts, engine: FakeEngine, tmp_path: Path
) -> None:
    version = version_in(tmp_path)
    worker.observe(msgspec.structs.replace(version, checksum="0" * 64))
    with pytest.raises(UnavailableError, match="expected sha256 000"):
        await worker.handle(request())
    assert engine.prompts == []
    assert engine.loads == []


async def test_each_purpose_has_its_temperature(worker: MakeRollouts, engine: FakeEngine, tmp_path: Path) -> None:
    worker.observe(version_in(tmp_path))
    await worker.handle(request(seed=11))
    await worker.handle(request(purpose="evaluation"))
    assert [params.temperature for params in engine.params] == [1.0, 0.5]
    assert engine.params[0].seed == 11


async def test_the_newest_version_is_sampled_with_after_it_is_loaded(
    worker: MakeRollouts, engine: FakeEngine, tmp_path: Path
) -> None:
    for version in range(3):
        worker.observe(version_in(tmp_path, version))
    assert trajectory_of(await worker.handle(request())).attempt.policy_version_max == 2
    worker.observe(version_in(tmp_path, 1, run_id="b"))
    while engine.policy_version != 1:
        await asyncio.sleep(0.001)
    assert trajectory_of(await worker.handle(request(1))).attempt.policy_version_max == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("concurrency", 0),
        ("num_threads", 0),
        ("max_turns", 0),
        ("evaluation_temperature", 0),
        ("engine", "x"),
        ("device", "gpu"),
    ],
)
def test_an_impossible_configuration_names_its_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"rollout_worker\.{key}"):
        convert("rollout_worker", {key: value}, Config)
