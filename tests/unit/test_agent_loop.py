"""The agent loop: exact tokens over many turns, statuses, limits, the deadline, and what is kept when it ends early."""

import asyncio
import time
from typing import Any

import pytest

from gagar.agent.loop import Rollout, Tools, run_agent, turn_seed
from gagar.agent.role import AgentLimits
from gagar.agent.solver import Solver
from gagar.errors import UnavailableError
from gagar.records import Message
from gagar.sandbox.protocol import CommandResult, WorkspaceError
from tests.rollouts import SUBMITS, FakeChat, FakeEngine, FakeSandbox, make_task

LOOKS = "```bash\nls\n```"


async def attempt_with(engine: FakeEngine, sandbox: FakeSandbox | None = None, **fields: Any) -> Rollout:
    deadline = fields.pop("deadline", time.time() + 60)
    system_prompt = fields.pop("system_prompt", "")
    solver = Solver(make_task(), AgentLimits(**{"max_turns": 4, **fields}), system_prompt)
    return await run_agent(solver, Tools(engine, FakeChat(), sandbox or FakeSandbox()), seed=7, deadline=deadline)


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


async def test_the_deadline_in_mid_turn_keeps_what_was_sampled() -> None:
    engine = FakeEngine([LOOKS], version=0)
    engine.finish = "deadline"
    attempt = await attempt_with(engine)
    assert (attempt.status, attempt.infrastructure) == ("timeout", False)
    assert attempt.context.num_sampled == len(LOOKS)


async def test_a_deadline_that_has_passed_samples_nothing() -> None:
    engine = FakeEngine(version=0)
    attempt = await attempt_with(engine, deadline=time.time() - 1)
    assert (attempt.status, engine.prompts, attempt.context.num_sampled) == ("timeout", [], 0)


async def test_an_engine_that_does_not_answer_is_left_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagar.agent.loop.DEADLINE_GRACE_S", 0.0)
    engine = FakeEngine(version=0)
    engine.block = asyncio.Event()
    attempt = await attempt_with(engine, deadline=time.time() + 0.05)
    assert (attempt.status, attempt.context.num_sampled) == ("timeout", 0)


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
