"""The agent loop: exact tokens over many turns, statuses, limits, the deadline, and what is kept when it ends early."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from gagar.agent.clock import AttemptClock
from gagar.agent.ending import AgentTooSlow, AttemptEnd, DeadlinePassed
from gagar.agent.loop import Rollout, Tools, out_of_time, run_agent, turn_seed
from gagar.agent.role import AgentLimits
from gagar.agent.solver import Solver
from gagar.engine.protocol import Completion, SamplingParams
from gagar.errors import UnavailableError
from gagar.records import Message
from gagar.sandbox.protocol import CommandResult, WorkspaceError
from gagar.tasks.patches import Tree
from tests.rollouts import SUBMITS, FakeChat, FakeEngine, FakeSandbox, FakeWorkspace, make_task

LOOKS = "```bash\nls\n```"


Ticking = Callable[[float], None]


@pytest.fixture
def tick(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    """Lets seconds pass for the clocks of attempts, which stand still otherwise."""
    now = 1000.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr("gagar.agent.clock.time", clock)
    return pass_time


class TimedEngine(FakeEngine):
    """Has a queue, and takes its time to sample."""

    def __init__(self, tick: Ticking, wait_s: float, sampling_s: float, answer: str = SUBMITS) -> None:
        super().__init__([answer], version=0)
        self._tick = tick
        self._wait_s = wait_s
        self.sampling_s = sampling_s

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Completion:
        self._tick(self._wait_s + self.sampling_s)
        return await super().generate(prompt_ids, params)


class TimedSandbox(FakeSandbox):
    """Is not there at once, and kills commands that take too long."""

    def __init__(self, tick: Ticking, wait_s: float, command_s: float) -> None:
        super().__init__()
        self._tick = tick
        self._wait_s = wait_s
        self._command_s = command_s
        self.timeouts: list[float] = []

    @asynccontextmanager
    async def _workspace(self, tree: Tree) -> AsyncIterator[FakeWorkspace]:
        self._tick(self._wait_s)
        yield TimedWorkspace(tree, self)

    def run(self, timeout_s: float) -> bool:
        """Whether the command ends in time."""
        self.timeouts.append(timeout_s)
        self._tick(min(self._command_s, timeout_s))
        return self._command_s < timeout_s


class TimedWorkspace(FakeWorkspace):
    """Of a TimedSandbox."""

    def __init__(self, tree: Tree, sandbox: TimedSandbox) -> None:
        super().__init__(tree, sandbox.shell)
        self._sandbox = sandbox

    async def run(self, script: str, timeout_s: float) -> CommandResult:
        if self._sandbox.run(timeout_s):
            return await super().run(script, timeout_s)
        return CommandResult(exit_code=-1, output="", is_timeout=True)


async def attempt_with(engine: FakeEngine, sandbox: FakeSandbox | None = None, **fields: Any) -> Rollout:
    clock = AttemptClock(fields.pop("left_s", 60.0), fields.pop("agent_timeout_s", 30.0))
    system_prompt = fields.pop("system_prompt", "")
    solver = Solver(make_task(), AgentLimits(**{"max_turns": 4, **fields}), system_prompt)
    return await run_agent(solver, Tools(engine, FakeChat(), sandbox or FakeSandbox()), clock, seed=7)


def spans(attempt: Rollout) -> list[tuple[int, str]]:
    """The context as (loss mask, text) spans."""
    found: list[tuple[int, str]] = []
    for token, mask in zip(attempt.context.token_ids, attempt.context.loss_mask, strict=True):
        if not found or found[-1][0] != mask:
            found.append((mask, ""))
        found[-1] = (mask, found[-1][1] + chr(token))
    return found


async def test_one_turn_that_submits_is_completed_with_its_patch() -> None:
    engine, sandbox = FakeEngine(version=3), FakeSandbox()
    attempt = await attempt_with(engine, sandbox, max_turns=1)
    assert (attempt.status, attempt.failure, attempt.num_turns) == ("completed", "", 1)
    assert "+++ b/new.txt" in attempt.result
    assert "+hello" in attempt.result
    assert spans(attempt) == [(0, "<user>say hello"), (1, SUBMITS + "\0")]
    assert attempt.messages == [Message(role="user", content="say hello"), Message(role="assistant", content=SUBMITS)]
    assert attempt.context.version_range == (3, 3)
    assert sandbox.num_open == 0


async def test_the_context_of_each_turn_is_the_ids_before_it_and_the_observation() -> None:
    engine = FakeEngine([LOOKS, "no block", SUBMITS], version=0)
    attempt = await attempt_with(engine)
    assert attempt.status == "completed"
    observed, told = attempt.messages[2].content, attempt.messages[4].content
    assert observed == "exit code 0\nwritten\n"
    assert told.startswith("no action found")
    assert spans(attempt) == [
        (0, "<user>say hello"),
        (1, LOOKS + "\0"),
        (0, f"<user>{observed}<assistant>"),
        (1, "no block\0"),
        (0, f"<user>{told}<assistant>"),
        (1, SUBMITS + "\0"),
    ]
    assert engine.prompts[2] == attempt.context.token_ids[: -len(SUBMITS) - 1]
    logprobs, versions = attempt.context.logprobs, attempt.context.policy_versions
    assert (
        [value != 0 for value in logprobs] == [value == 0 for value in versions] == [bool(m) for m in attempt.context.loss_mask]
    )


async def test_what_the_engine_was_given_is_not_changed_afterwards() -> None:
    engine = FakeEngine([LOOKS, SUBMITS], version=0)
    await attempt_with(engine)
    assert len(engine.prompts[0]) == len("<user>say hello")


async def test_each_turn_has_a_seed_of_its_own_and_the_attempts_parameters() -> None:
    engine = FakeEngine([LOOKS, LOOKS, SUBMITS], version=0)
    await attempt_with(engine, temperature=0.7, max_new_tokens=33)
    assert [p.seed for p in engine.params] == [turn_seed(7, turn) for turn in range(3)]
    assert engine.params[0].seed == 7
    assert len({p.seed for p in engine.params}) == 3
    assert {(p.temperature, p.max_new_tokens) for p in engine.params} == {(0.7, 33)}


async def test_a_system_prompt_comes_first() -> None:
    attempt = await attempt_with(FakeEngine(version=0), system_prompt="be brief")
    assert spans(attempt)[0] == (0, "<system>be brief<user>say hello")


async def test_turns_used_up_is_truncated_and_leaves_no_patch() -> None:
    attempt = await attempt_with(FakeEngine([LOOKS], version=0), max_turns=2)
    assert (attempt.status, attempt.num_turns, attempt.result) == ("truncated", 2, "")
    assert "turns: expected submit within 2" in attempt.failure
    assert attempt.messages[-1].role == "assistant"


async def test_a_turn_cut_at_its_token_limit_is_truncated_and_not_acted_on() -> None:
    engine, sandbox = FakeEngine([SUBMITS], version=0), FakeSandbox()
    engine.finish = "length"
    attempt = await attempt_with(engine, sandbox)
    assert (attempt.status, sandbox.num_opened) == ("truncated", 0)
    assert attempt.context.num_sampled == len(SUBMITS)


async def test_no_action_in_the_last_turn_is_the_agents_failure() -> None:
    attempt = await attempt_with(FakeEngine(["I cannot"], version=0), max_turns=1)
    assert (attempt.status, attempt.infrastructure) == ("failed", False)
    assert "expected a fenced bash block" in attempt.failure
    assert attempt.context.num_sampled == 9


async def test_a_printed_word_is_no_submission() -> None:
    def echoes(script: str, tree: dict[str, str]) -> CommandResult:
        return CommandResult(exit_code=0, output="submit\nsubmitted-0000000000000000\n")

    attempt = await attempt_with(FakeEngine([LOOKS], version=0), FakeSandbox(echoes), max_turns=1)
    assert attempt.status == "truncated"


async def test_a_killed_command_is_told_to_the_agent() -> None:
    def hangs(script: str, tree: dict[str, str]) -> CommandResult:
        return CommandResult(exit_code=-1, output="", is_timeout=True)

    attempt = await attempt_with(FakeEngine([LOOKS], version=0), FakeSandbox(hangs), max_turns=2, command_timeout_s=3.0)
    assert attempt.messages[2].content == "killed after 3 s\n"


async def test_the_agents_own_time_over_in_mid_turn_fails_it_and_keeps_what_was_sampled(tick: Ticking) -> None:
    engine = TimedEngine(tick, wait_s=0.0, sampling_s=30.0, answer=LOOKS)
    engine.finish = "time"
    attempt = await attempt_with(engine)
    assert (attempt.status, attempt.infrastructure) == ("timeout", False)
    assert attempt.failure == "agent_timeout_s: expected an end within 30 s of own work, got none"
    assert attempt.context.num_sampled == len(LOOKS)
    assert (attempt.times.agent_s, attempt.generation_s) == (30.0, 30.0)


async def test_the_deadline_in_mid_turn_is_the_infrastructures_doing_and_keeps_what_was_sampled(tick: Ticking) -> None:
    engine = TimedEngine(tick, wait_s=40.0, sampling_s=20.0, answer=LOOKS)
    engine.finish = "time"
    attempt = await attempt_with(engine)
    assert (attempt.status, attempt.infrastructure) == ("timeout", True)
    assert attempt.context.num_sampled == len(LOOKS)
    assert (attempt.times.engine_s, attempt.times.agent_s) == (40.0, 20.0)


async def test_a_deadline_that_has_passed_samples_nothing() -> None:
    engine = FakeEngine(version=0)
    attempt = await attempt_with(engine, left_s=-1.0)
    assert (attempt.status, engine.prompts, attempt.context.num_sampled) == ("timeout", [], 0)
    assert attempt.infrastructure


async def test_an_engine_that_does_not_answer_is_left_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagar.agent.loop.DEADLINE_GRACE_S", 0.0)
    engine = FakeEngine(version=0)
    engine.block = asyncio.Event()
    attempt = await attempt_with(engine, left_s=0.05)
    assert (attempt.status, attempt.infrastructure, attempt.context.num_sampled) == ("timeout", True, 0)
    assert attempt.failure == "deadline: expected an answer of the engine before it, got none"
    assert attempt.times.engine_s >= 0.05 > attempt.times.agent_s


async def test_a_sandbox_that_does_not_come_is_left_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagar.agent.loop.DEADLINE_GRACE_S", 0.0)
    sandbox = FakeSandbox()
    sandbox.block = asyncio.Event()
    attempt = await attempt_with(FakeEngine(version=0), sandbox, left_s=0.05)
    assert (attempt.status, attempt.infrastructure, sandbox.num_open) == ("timeout", True, 0)
    assert attempt.failure == "deadline: expected a sandbox before it, got none"
    assert attempt.times.sandbox_s > attempt.times.agent_s


async def test_what_an_attempt_waits_for_is_told_apart_and_adds_up(tick: Ticking) -> None:
    """Twice 5 s in the engine's queue and 7 s for the sandbox, and 1 s of sampling and 2 s of commands in each turn."""
    engine = TimedEngine(tick, wait_s=5.0, sampling_s=1.0)
    engine.answers = [LOOKS, SUBMITS]
    attempt = await attempt_with(engine, TimedSandbox(tick, wait_s=7.0, command_s=2.0))
    assert attempt.status == "completed"
    times = attempt.times
    assert (times.queue_s, times.engine_s, times.sandbox_s, times.agent_s) == (0.0, 10.0, 7.0, 6.0)
    assert (attempt.duration_s, times.total_s, attempt.generation_s) == (23.0, 23.0, 2.0)
    assert [(params.timeout_s, params.deadline_s) for params in engine.params] == [(30.0, 60.0), (27.0, 45.0)]


async def test_the_engines_queue_between_turns_is_not_the_agents_time(tick: Ticking) -> None:
    """Waiting, 50 s of it, would have used up its 30 s of own time."""
    engine = TimedEngine(tick, wait_s=25.0, sampling_s=1.0)
    engine.answers = [LOOKS, SUBMITS]
    attempt = await attempt_with(engine)
    assert (attempt.status, attempt.times.engine_s, attempt.times.agent_s) == ("completed", 50.0, 2.0)


async def test_commands_that_are_too_slow_use_up_the_agents_own_time(tick: Ticking) -> None:
    sandbox = TimedSandbox(tick, wait_s=1.0, command_s=10.0)
    attempt = await attempt_with(TimedEngine(tick, wait_s=1.0, sampling_s=1.0, answer=LOOKS), sandbox)
    assert (attempt.status, attempt.infrastructure, attempt.num_turns) == ("timeout", False, 3)
    assert (attempt.times.agent_s, sandbox.timeouts) == (30.0, [29.0, 18.0, 7.0])


@pytest.mark.parametrize(("wait_s", "is_infrastructure"), [(0.0, False), (45.0, True)])
async def test_a_command_cut_short_ends_it_by_whose_time_is_up(tick: Ticking, wait_s: float, is_infrastructure: bool) -> None:
    """In the last turn too, where the limit of turns would hide it."""
    sandbox = TimedSandbox(tick, wait_s=wait_s, command_s=100.0)
    attempt = await attempt_with(FakeEngine([LOOKS], version=0), sandbox, max_turns=1)
    assert (attempt.status, attempt.infrastructure) == ("timeout", is_infrastructure)
    assert sandbox.timeouts == [15.0 if is_infrastructure else 30.0]


@pytest.mark.parametrize(("waited_s", "expected"), [(0.0, AgentTooSlow), (40.0, DeadlinePassed)])
def test_when_both_are_over_what_was_over_first_counts(tick: Ticking, waited_s: float, expected: type[AttemptEnd]) -> None:
    clock = AttemptClock(60.0, 30.0)
    tick(waited_s)
    clock.turn_to("agent")
    tick(100.0)
    assert isinstance(out_of_time(clock), expected)


async def test_what_lies_between_turns_is_the_agents_time(tick: Ticking) -> None:
    class SlowChat(FakeChat):
        def render(self, messages: list[dict[str, str]]) -> list[int]:
            tick(3.0)
            return super().render(messages)

    solver, clock = Solver(make_task(), AgentLimits()), AttemptClock(60.0, 30.0)
    tick(1.0)
    rollout = await run_agent(solver, Tools(FakeEngine(version=0), SlowChat(), FakeSandbox()), clock, seed=7)
    assert (rollout.times.queue_s, rollout.times.agent_s) == (1.0, 3.0)


def test_an_engine_that_tells_more_than_its_call_is_believed_for_the_call_only(tick: Ticking) -> None:
    clock = AttemptClock(60.0, 30.0)
    tick(2.0)
    clock.turn_to("engine")
    tick(3.0)
    assert clock.end_turn(50.0) == 3.0
    clock.turn_to("engine")
    tick(4.0)
    assert clock.end_turn(-1.0) == 0.0
    times = clock.times()
    assert (times.queue_s, times.engine_s, times.agent_s, times.total_s) == (2.0, 4.0, 3.0, clock.duration_s)
    assert (clock.left_s, clock.agent_left_s) == (51.0, 27.0)


async def test_an_engine_that_is_down_is_infrastructure_and_what_was_sampled_is_kept() -> None:
    attempt = await attempt_with(FakeEngine([LOOKS, UnavailableError("engine: down")], version=0))
    assert (attempt.status, attempt.infrastructure, attempt.failure) == ("failed", True, "engine: down")
    assert attempt.context.num_sampled == len(LOOKS) + 1


async def test_a_sandbox_that_is_down_is_infrastructure() -> None:
    def fails(script: str, tree: dict[str, str]) -> CommandResult:
        raise UnavailableError("sandbox: down")

    sandbox = FakeSandbox(fails)
    attempt = await attempt_with(FakeEngine(version=0), sandbox)
    assert (attempt.status, attempt.infrastructure, sandbox.num_open) == ("failed", True, 0)


async def test_a_workspace_that_the_agent_broke_is_its_own_failure() -> None:
    def grows(script: str, tree: dict[str, str]) -> CommandResult:
        raise WorkspaceError("workspace: expected at most 2000 files, got more")

    attempt = await attempt_with(FakeEngine(version=0), FakeSandbox(grows))
    assert (attempt.status, attempt.infrastructure) == ("failed", False)


async def test_a_cancelled_attempt_leaves_no_workspace() -> None:
    sandbox, engine = FakeSandbox(), FakeEngine([LOOKS], version=0)
    started = asyncio.Event()

    def looks(script: str, tree: dict[str, str]) -> CommandResult:
        engine.block = asyncio.Event()
        started.set()
        return CommandResult(exit_code=0, output="")

    sandbox.shell = looks
    task = asyncio.create_task(attempt_with(engine, sandbox))
    await started.wait()
    assert sandbox.num_open == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sandbox.num_open == 0
