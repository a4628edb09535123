"""The agent loop: a task in, an attempt out. One turn or many; the same for every task set, engine and sandbox.

A turn: the engine completes the context, the completion's bash block runs in the attempt's workspace, its output comes back as
a user message. It ends on `submit`, a limit, the deadline, or a fault. What has been sampled by then is kept, and the record
says how it ended. Not promised: that an attempt cut short leaves a patch; only `submit` does.
"""

import asyncio
import secrets
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import msgspec

from gagar.agent.actions import NO_ACTION, format_observation, parse_action
from gagar.agent.context import TokenContext
from gagar.agent.ending import AgentFault, AttemptEnd, DeadlinePassed, InfrastructureFault, LimitReached, Submitted
from gagar.engine.protocol import Engine, SamplingParams
from gagar.errors import UnavailableError
from gagar.records import Message, TrajectoryStatus
from gagar.sandbox.protocol import Sandbox, Workspace, WorkspaceError
from gagar.tasks.patches import make_patch
from gagar.tasks.task import Task

DEADLINE_GRACE_S = 2.0
"""The engine answers at the deadline with what it has; this much later it is no longer waited for."""
MAX_INLINE_CHARS = 64 << 10
"""A tree up to this size is compared on the event loop."""


class AttemptLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt may use."""

    max_turns: int = 1
    """Completions."""
    max_new_tokens: int = 1024
    """Of one completion."""
    command_timeout_s: float = 60.0
    """Of one command."""
    temperature: float = 1.0
    """Of the sampling."""
    system_prompt: str = ""
    """Empty: no system message."""


@dataclass(kw_only=True)
class Attempt:
    """What an attempt leaves."""

    status: TrajectoryStatus = "failed"
    failure: str = ""
    infrastructure: bool = False
    messages: list[Message] = field(default_factory=list)
    patch: str = ""
    context: TokenContext = field(default_factory=TokenContext)
    num_turns: int = 0
    started_at: float = 0.0
    duration_s: float = 0.0
    generation_s: float = 0.0


async def run_attempt(
    task: Task, engine: Engine, sandbox: Sandbox, limits: AttemptLimits, *, seed: int, deadline: float
) -> Attempt:
    """One attempt at `task`, over by `deadline` (Unix seconds) or soon after. Raises nothing but CancelledError."""
    attempt = Attempt(started_at=time.time())
    start = time.monotonic()
    try:
        async with AsyncExitStack() as stack:
            loop = AgentLoop(task, engine, sandbox, limits, attempt, seed=seed, deadline=deadline, stack=stack)
            async with asyncio.timeout(deadline - attempt.started_at + DEADLINE_GRACE_S):
                await loop.run()
    except TimeoutError:
        end: AttemptEnd = DeadlinePassed(f"deadline: expected an end within {DEADLINE_GRACE_S} s after it, got none")
        _close(attempt, end)
    except UnavailableError as error:
        _close(attempt, InfrastructureFault(str(error)))
    except WorkspaceError as error:
        _close(attempt, AgentFault(str(error)))
    except AttemptEnd as ended:
        _close(attempt, ended)
    attempt.duration_s = time.monotonic() - start
    return attempt


def _close(attempt: Attempt, end: AttemptEnd) -> None:
    attempt.status, attempt.failure, attempt.infrastructure = end.status, str(end), end.infrastructure
    if end.status != "completed":
        attempt.patch = ""


class AgentLoop:
    """The state of one attempt on its way."""

    def __init__(
        self,
        task: Task,
        engine: Engine,
        sandbox: Sandbox,
        limits: AttemptLimits,
        attempt: Attempt,
        *,
        seed: int,
        deadline: float,
        stack: AsyncExitStack,
    ) -> None:
        self._task = task
        self._engine = engine
        self._sandbox = sandbox
        self._limits = limits
        self._attempt = attempt
        self._seed = seed
        self._deadline = deadline
        self._stack = stack
        self._workspace: Workspace | None = None
        self._mark = f"submitted-{secrets.token_hex(8)}"

    async def run(self) -> None:
        """Turns until an AttemptEnd is raised."""
        self._open()
        while True:
            await self.step()

    async def step(self) -> None:
        self._observe(await self._act(await self._complete()))

    def _open(self) -> None:
        """The first context: what the chat template makes of the task."""
        if self._limits.system_prompt:
            self._attempt.messages.append(Message(role="system", content=self._limits.system_prompt))
        self._attempt.messages.append(Message(role="user", content=self._task.statement))
        rendered = [{"role": message.role, "content": message.content} for message in self._attempt.messages]
        self._attempt.context.give(self._engine.render(rendered))

    async def _complete(self) -> str:
        """Samples a turn; the text of it."""
        attempt, limits = self._attempt, self._limits
        self._check_deadline()
        params = SamplingParams(
            temperature=limits.temperature,
            max_new_tokens=limits.max_new_tokens,
            seed=turn_seed(self._seed, attempt.num_turns),
            deadline=self._deadline,
        )
        start = time.monotonic()
        try:
            completion = await self._engine.generate(list(attempt.context.token_ids), params)
        finally:
            attempt.generation_s += time.monotonic() - start
        attempt.context.sampled(completion)
        text = self._engine.decode(completion.token_ids)
        if completion.token_ids:
            attempt.num_turns += 1
            attempt.messages.append(Message(role="assistant", content=text))
        if completion.finish == "length":
            raise LimitReached(f"tokens: expected an end of the turn within {limits.max_new_tokens} or the context, got none")
        if completion.finish == "deadline":
            raise DeadlinePassed("deadline: expected an end of the turn before it, got none")
        return text

    async def _act(self, completion: str) -> str:
        """Runs the completion's action; what the agent is told of it."""
        action = parse_action(completion)
        if action is None:
            if self._attempt.num_turns >= self._limits.max_turns:
                raise AgentFault("action: expected a fenced bash block in the last turn, got none")
            return NO_ACTION
        workspace = await self._open_workspace()
        timeout_s = min(self._limits.command_timeout_s, self._check_deadline())
        result = await workspace.run(with_submit(action, self._mark), timeout_s)
        if self._mark in result.output:
            await self._submit(workspace)
        return format_observation(result, timeout_s)

    async def _open_workspace(self) -> Workspace:
        """The attempt's workspace, made at the first action: while it samples it holds no sandbox."""
        if self._workspace is None:
            self._workspace = await self._stack.enter_async_context(self._sandbox.workspace(self._task.tree))
        return self._workspace

    async def _submit(self, workspace: Workspace) -> None:
        tree = await workspace.read_tree()
        if sum(map(len, tree.values())) <= MAX_INLINE_CHARS:
            self._attempt.patch = make_patch(self._task.tree, tree)
        else:
            self._attempt.patch = await asyncio.to_thread(make_patch, self._task.tree, tree)
        raise Submitted

    def _observe(self, observation: str) -> None:
        if self._attempt.num_turns >= self._limits.max_turns:
            raise LimitReached(f"turns: expected submit within {self._limits.max_turns}, got none")
        self._attempt.messages.append(Message(role="user", content=observation))
        self._attempt.context.give(self._engine.render_turn(observation))

    def _check_deadline(self) -> float:
        """Seconds left; raises DeadlinePassed if there are none."""
        left = self._deadline - time.time()
        if left <= 0:
            raise DeadlinePassed("deadline: expected time for another turn, got none")
        return left


def turn_seed(seed: int, turn: int) -> int:
    """Another seed for each turn of an attempt, from 0; that of the first is the attempt's."""
    return (seed + turn * 0x9E3779B97F4A7C15) & ((1 << 63) - 1)


def with_submit(action: str, mark: str) -> str:
    """The script with `submit`: a function whose only effect is to print the mark and leave the shell."""
    return f"submit() {{ printf '\\n%s\\n' {mark}; exit 0; }}\n{action}"
