"""An attempt that had to wait for too long is nobody's failure: from the worker over the verifier into its group."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumers.verifier import VerifyTrajectories
from gagar.groups.gathering import Gather
from gagar.records import Group, LogRef, Outcome, RolloutRequest, Trajectory, Verdict
from gagar.sandbox.protocol import TestRun
from gagar.stream.handlers import Delivery, Linked
from gagar.tasks.patches import Tree
from producers.rollout_worker import MakeRollouts
from tests.builders import make_delivery, make_request, make_run
from tests.rollouts import FakeEngine, FakeSandbox, FakeWorkspace
from tests.unit.test_rollout_worker import NoReferences, make_worker, version_in
from topology.resources import Resources

SIZE = 4
DEADLINE_S = 0.3


class PassingWorkspace(FakeWorkspace):
    """Every patch passes in it."""

    async def run_tests(self, test_ids: Sequence[str], timeout_s: float, conftests: Sequence[str] = ()) -> TestRun:
        return TestRun(passed=tuple(test_ids), failed=(), is_complete=True)

    async def count_dead_statements(self, base: Tree, result: Tree) -> int:
        return 0


class PassingSandbox(FakeSandbox):
    """Makes such workspaces."""

    @asynccontextmanager
    async def _workspace(self, tree: Tree) -> AsyncIterator[FakeWorkspace]:
        async with super()._workspace(tree):
            yield PassingWorkspace(tree, self.shell)


class World:
    """A worker and a verifier, and what they are asked."""

    def __init__(self, folder: Path) -> None:
        self.engine = FakeEngine()
        self.sandbox = FakeSandbox()
        self.worker: MakeRollouts = make_worker(folder, self.engine, self.sandbox, concurrency=2)
        self._verifier = VerifyTrajectories(Resources(make_run(folder)).tasks, PassingSandbox(), 5.0)

    def request(self, index: int, left_s: float, agent_timeout_s: float = 300.0) -> Delivery[RolloutRequest]:
        record = make_request("t-1", index, group_size=SIZE, deadline_s=left_s, agent_timeout_s=agent_timeout_s)
        return make_delivery(record, "rollout-requests", index)

    async def attempt(self, request: Delivery[RolloutRequest]) -> Trajectory:
        [output] = await self.worker.handle(request)
        made: Any = output.then(LogRef(topic="t", partition=0, offset=0)) if isinstance(output, Linked) else output
        assert isinstance(made, Trajectory)
        return made

    async def verdict(self, trajectory: Trajectory) -> Verdict:
        [verdict] = await self._verifier.handle(make_delivery(trajectory, "trajectories", trajectory.sample_index))
        return verdict

    def end_of(self, verdicts: Sequence[Verdict]) -> Group | Outcome:
        gather = Gather(30.0)
        state = gather.start("t-1")
        requests = [self.request(index, 0.0) for index in range(SIZE)]
        deliveries = [*requests, *(make_delivery(verdict, "verdicts") for verdict in verdicts)]
        [end] = [end for delivery in deliveries for end in gather.apply(state, delivery, 1000.0).outputs]
        assert isinstance(end, Group | Outcome)
        return end


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.worker.open(NoReferences())
    yield made
    await made.worker.close()


@pytest.mark.parametrize("awaited", ["queue", "place", "engine", "sandbox"])
async def test_whatever_it_waits_for_it_is_invalid_and_no_time_is_the_agents(
    world: World, awaited: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gagar.agent.loop.DEADLINE_GRACE_S", 0.0)
    if awaited != "queue":  # else it waits for a policy
        world.worker.observe(version_in(tmp_path))
    if awaited == "place":
        await world.worker._places.acquire()
        await world.worker._places.acquire()
    if awaited == "engine":
        world.engine.block = asyncio.Event()
    if awaited == "sandbox":
        world.sandbox.block = asyncio.Event()
    trajectory = await world.attempt(world.request(0, DEADLINE_S))
    verdict = await world.verdict(trajectory)
    assert (verdict.status, verdict.reason) == ("invalid", trajectory.failure)
    times = trajectory.times
    waited_s = {"engine": times.engine_s, "sandbox": times.sandbox_s}.get(awaited, times.queue_s)
    assert waited_s == pytest.approx(DEADLINE_S, abs=0.2)
    assert times.agent_s < 0.1 < waited_s
    assert times.total_s == pytest.approx(trajectory.duration_s)


async def test_of_four_equal_attempts_two_late_in_the_queue_train_nothing(world: World, tmp_path: Path) -> None:
    """All four would have passed. Two hold the places until the deadline of the others has passed; if these counted as
    failures, the group would be mixed, and the passing ones train on +0.5 with nothing negative."""
    world.worker.observe(version_in(tmp_path))
    world.engine.block = asyncio.Event()
    first = [asyncio.create_task(world.attempt(world.request(index, 60.0))) for index in range(2)]
    while len(world.engine.prompts) < 2:
        await asyncio.sleep(0.001)
    late = await asyncio.gather(*(world.attempt(world.request(index, DEADLINE_S)) for index in (2, 3)))
    world.engine.block.set()
    verdicts = [await world.verdict(trajectory) for trajectory in [*await asyncio.gather(*first), *late]]
    assert [verdict.status for verdict in verdicts] == ["passed", "passed", "invalid", "invalid"]
    end = world.end_of(verdicts)
    assert isinstance(end, Outcome)
    assert (end.kind, end.reason, end.num_valid, end.num_passed) == ("dropped", "all_passed", 2, 2)


async def test_of_four_equal_attempts_three_late_are_too_few(world: World, tmp_path: Path) -> None:
    world.worker.observe(version_in(tmp_path))
    first = await world.attempt(world.request(0, 60.0))
    late = [await world.attempt(world.request(index, -0.1)) for index in (1, 2, 3)]
    end = world.end_of([await world.verdict(trajectory) for trajectory in (first, *late)])
    assert isinstance(end, Outcome)
    assert (end.kind, end.reason, end.num_valid) == ("dropped", "too_few_valid", 1)


async def test_an_agent_that_is_too_slow_fails_by_its_own_clock(world: World, tmp_path: Path) -> None:
    """It is answered long before the deadline, and its group may train on it."""
    world.worker.observe(version_in(tmp_path))
    world.engine.finish, world.engine.sampling_s = "time", 0.05
    world.engine.lasts_s = 0.05
    trajectory = await world.attempt(world.request(0, 60.0, agent_timeout_s=0.05))
    assert (trajectory.attempt.status, trajectory.infrastructure) == ("timeout", False)
    assert trajectory.times.agent_s >= 0.05
    assert (await world.verdict(trajectory)).status == "failed"
