"""The watch: each way in which a run can end is told apart, in bounded time, and its tasks end with it."""

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gagar.errors import UnavailableError
from gagar.processes.supervised import ProcessState
from gagar.records import PolicyVersion
from gagar.report.progress import Progress
from gagar.report.terminal import Plan, Screen
from gagar.report.watch import Watch, own_topics, phase, resident_bytes, stage_name
from gagar.stream.handlers import Delivery
from tests.builders import make_delivery, make_request, make_version
from topology.stages import GATHERER, LEARNER, ROLLOUT_WORKER, SAMPLER, STAGES, VERIFIER


def make_process(name: str, *, pid: int | None = 1, restarts: int = 0) -> ProcessState:
    return ProcessState(name=name, pid=pid, restarts=restarts, exit_code=None)


class FakeStages:
    """Stages that end with `code` once `end` is set."""

    def __init__(self, code: int = 0, is_ended: bool = False) -> None:
        self.end = asyncio.Event()
        self._code = code
        if is_ended:
            self.end.set()

    def states(self) -> list[ProcessState]:
        return [
            make_process("sampler"),
            make_process("verifier.0", restarts=2),
            make_process("verifier.1", pid=None, restarts=1),
        ]

    async def wait(self) -> int:
        await self.end.wait()
        return self._code


class FakeDisplay:
    """Keeps what it was shown; `then` is called at each picture."""

    interval_s = 0.001

    def __init__(self) -> None:
        self.screens: list[Screen] = []

    def show(self, screen: Screen) -> None:
        self.screens.append(screen)


class FakeClock:
    """Goes on by `tick` at each look."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 1000.0
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


async def endless(*records: Any) -> AsyncGenerator[Delivery[Any], None]:
    for record in records:
        yield make_delivery(record, "rollout-requests")
    await asyncio.Event().wait()


async def broken() -> AsyncGenerator[Delivery[Any], None]:
    yield make_delivery(make_request())
    raise UnavailableError("broker: expected an answer, got none")


def make_watch(clock: FakeClock | None = None, **fields: Any) -> Watch:
    plan = Plan(run_name="r", num_steps=5, stages=STAGES, log_dir="/logs")
    return Watch(plan, fields.get("lags", lambda: {"verifier": 7}), lambda: 123, clock=clock or FakeClock())


async def watch_until_end(
    watch: Watch, stages: FakeStages, source: AsyncGenerator[Delivery[Any], None], is_stopped: bool = False
) -> tuple[str, FakeDisplay]:
    display, interrupted = FakeDisplay(), asyncio.Event()
    if is_stopped:
        interrupted.set()
    async with asyncio.timeout(10):
        ending = await watch.until_end(stages, source, display, interrupted)
    return ending, display


@pytest.mark.parametrize(("code", "expected"), [(0, "planned"), (1, "failed"), (2, "failed")])
async def test_the_end_of_the_stages_is_the_end_of_the_watch(code: int, expected: str) -> None:
    ending, display = await watch_until_end(make_watch(), FakeStages(code, is_ended=True), endless())
    assert ending == expected
    assert display.screens


async def test_an_interruption_wins_over_everything() -> None:
    ending, _ = await watch_until_end(make_watch(), FakeStages(is_ended=True), endless(), is_stopped=True)
    assert ending == "interrupted"


async def test_a_run_in_which_nothing_moves_is_given_up() -> None:
    ending, _ = await watch_until_end(make_watch(FakeClock(tick=1.0)), FakeStages(), endless(make_request()))
    assert ending == "stalled"


async def test_new_records_keep_a_run_alive() -> None:
    clock = FakeClock()
    watch = make_watch(clock)
    clock.now += 100
    watch.progress.apply(make_delivery(make_request()))
    assert watch.idle_s() == 0.0
    clock.now += 100
    assert watch.idle_s() == 100.0
    assert watch.elapsed_s() == 200.0


async def test_an_error_of_the_topics_comes_out() -> None:
    with pytest.raises(UnavailableError, match="expected an answer"):
        await watch_until_end(make_watch(), FakeStages(), broken())


async def test_nothing_runs_on_after_the_end() -> None:
    before = asyncio.all_tasks()
    await watch_until_end(make_watch(), FakeStages(is_ended=True), endless())
    assert asyncio.all_tasks() == before


async def test_lags_that_cannot_be_had_do_not_end_the_run() -> None:
    def lags() -> dict[str, int]:
        raise UnavailableError("broker: expected lags, got none")

    stages = FakeStages()
    asyncio.get_running_loop().call_later(0.05, stages.end.set)
    ending, display = await watch_until_end(make_watch(lags=lags), stages, endless())
    assert ending == "planned"
    assert all(row.lag is None for row in display.screens[-1].stages)


async def test_the_screen_sums_the_processes_of_a_stage() -> None:
    stages = FakeStages()
    asyncio.get_running_loop().call_later(0.05, stages.end.set)
    watch = make_watch()
    _, display = await watch_until_end(watch, stages, endless(make_request()))
    screen = display.screens[-1]
    verifier = next(row for row in screen.stages if row.name == "verifier")
    assert (verifier.num_up, verifier.num_processes, verifier.num_restarts, verifier.lag) == (1, 2, 3, 7)
    assert next(row for row in screen.stages if row.name == "learner").num_processes == 0
    assert screen.snapshot.num_requested == 1
    assert watch.peak_memory_bytes == 123


def test_the_rate_of_a_stage_is_that_of_the_topics_it_alone_writes() -> None:
    assert own_topics(SAMPLER, STAGES) == ["rollout-requests"]
    assert own_topics(ROLLOUT_WORKER, STAGES) == ["trajectory-tokens", "trajectories"]
    assert own_topics(VERIFIER, STAGES) == ["verdicts"]
    assert own_topics(GATHERER, STAGES) == ["groups"]
    assert own_topics(LEARNER, STAGES) == ["policy-versions"]


def test_a_process_belongs_to_the_stage_it_is_named_for() -> None:
    assert stage_name("verifier.3") == "verifier"
    assert stage_name("rollout-worker") == "rollout-worker"


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([], "starting"),
        ([make_version(0)], "first evaluation"),
        ([make_version(0), make_version(1)], "training"),
        ([make_version(0), make_version(1, is_last=True)], "last evaluation"),
    ],
)
def test_the_phase_follows_the_policy_versions(versions: list[PolicyVersion], expected: str) -> None:
    progress = Progress()
    for version in versions:
        progress.apply(make_delivery(version, "policy-versions"))
    assert phase(progress.snapshot()) == expected


def test_memory_is_that_of_this_process_at_least() -> None:
    own = resident_bytes()
    assert own > 1 << 20
    assert resident_bytes(os.getpid()) < 2 * own
    assert resident_bytes(2**22 + 12345) > 1 << 20
