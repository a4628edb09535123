"""The agent loop in real workspaces: actions change files, `submit` ends the attempt, the patch is what changed."""

import asyncio
from typing import Any

import pytest

from gagar.agent.clock import AttemptClock
from gagar.agent.loop import Rollout, Tools, run_agent
from gagar.agent.role import AgentLimits
from gagar.agent.solver import Solver
from gagar.sandbox.warm_sandbox import WarmSandbox
from gagar.tasks.patches import apply_patch
from tests.rollouts import FakeChat, FakeEngine, make_task

pytestmark = [pytest.mark.sandbox, pytest.mark.asyncio(loop_scope="session")]

TREE = {"sol.py": "def f(x):\n    raise NotImplementedError\n", "other.txt": "keep\n"}
SOLVES = "```bash\ncat > sol.py <<'E'\ndef f(x):\n    return x + 1\nE\nsubmit\n```"


async def attempt_with(sandbox: WarmSandbox, *answers: str, max_turns: int = 3, **fields: Any) -> Rollout:
    solver = Solver(make_task(tree=TREE), AgentLimits(max_turns=max_turns, **fields))
    tools = Tools(FakeEngine(answers, version=0), FakeChat(), sandbox)
    return await run_agent(solver, tools, AttemptClock(60.0, 30.0), seed=0)


async def test_a_nano_answer_is_completed_with_its_patch(sandbox: WarmSandbox) -> None:
    attempt = await attempt_with(sandbox, SOLVES, max_turns=1)
    assert (attempt.status, attempt.failure) == ("completed", "")
    assert apply_patch(TREE, attempt.result) == {**TREE, "sol.py": "def f(x):\n    return x + 1\n"}


async def test_files_stay_from_turn_to_turn(sandbox: WarmSandbox) -> None:
    attempt = await attempt_with(sandbox, "```bash\necho one > new.txt; cat sol.py\n```", "```bash\ncat new.txt; submit\n```")
    assert attempt.status == "completed"
    assert attempt.messages[2].content == f"exit code 0\n{TREE['sol.py']}"
    assert apply_patch(TREE, attempt.result) == {**TREE, "new.txt": "one\n"}


@pytest.mark.parametrize("script", ["true && submit", "(submit)", "if true; then submit; fi", "submit | cat"])
async def test_submit_works_wherever_a_command_does(sandbox: WarmSandbox, script: str) -> None:
    attempt = await attempt_with(sandbox, f"```bash\n{script}\n```", max_turns=1)
    assert (attempt.status, attempt.result) == ("completed", "")


@pytest.mark.parametrize("script", ["echo submit", "false && submit", "submit() { :; }; submit", "exit 0", "syntax error ("])
async def test_what_does_not_call_it_does_not_submit(sandbox: WarmSandbox, script: str) -> None:
    attempt = await attempt_with(sandbox, f"```bash\n{script}\n```", max_turns=1)
    assert attempt.status == "truncated"


async def test_a_command_that_hangs_is_killed_and_told(sandbox: WarmSandbox) -> None:
    attempt = await attempt_with(sandbox, "```bash\nsleep 60\n```", SOLVES, max_turns=2, command_timeout_s=0.5)
    assert attempt.status == "completed"
    assert attempt.messages[2].content.startswith("killed after")


async def test_attempts_side_by_side_do_not_meet(sandbox: WarmSandbox) -> None:
    attempts = await asyncio.gather(*(attempt_with(sandbox, SOLVES, max_turns=1) for _ in range(6)))
    assert [attempt.status for attempt in attempts] == ["completed"] * 6
