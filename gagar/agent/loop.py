"""The agent loop: a role in, a rollout out. One turn or many; the same for every role, engine and sandbox.

A turn: the engine completes the context, the completion's bash block runs in the agent's workspace, its output comes back as
a user message. It ends on `submit`, a limit, the end of the agent's own time, the deadline, or a fault. What has been sampled
by then is kept, and the rollout says how it ended. Not promised: that a rollout cut short leaves a result; only `submit` does.

The agent's own time is what it samples and what its commands take. Waiting for the engine or the sandbox is not its doing: a
deadline that comes while some of its own time is left ends it on account of the infrastructure.
"""

import asyncio
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import NamedTuple, Never

from gagar.agent.actions import NO_ACTION, format_observation, parse_action
from gagar.agent.clock import AttemptClock
from gagar.agent.context import TokenContext
from gagar.agent.ending import (
    AgentFault,
    AgentTooSlow,
    AttemptEnd,
    DeadlinePassed,
    InfrastructureFault,
    LimitReached,
    Submitted,
)
from gagar.agent.role import Role
from gagar.engine.protocol import Engine, SamplingParams
from gagar.errors import UnavailableError
from gagar.policies.chat_template import Chat
from gagar.records import AttemptTimes, Message, TrajectoryStatus
from gagar.sandbox.protocol import Sandbox, Workspace, WorkspaceError

DEADLINE_GRACE_S = 2.0
"""The engine answers at the deadline with what it has; this much later it is no longer waited for."""


@dataclass(kw_only=True)
class Rollout:
    """What one attempt leaves."""

    status: TrajectoryStatus = "failed"
    failure: str = ""
    infrastructure: bool = False
    messages: list[Message] = field(default_factory=list)
    result: str = ""
    """What the role makes of the workspace at `submit`; the solver's is a patch."""
    context: TokenContext = field(default_factory=TokenContext)
    num_turns: int = 0
    started_at: float = 0.0
    duration_s: float = 0.0
    times: AttemptTimes = field(default_factory=AttemptTimes)
    generation_s: float = 0.0


class Tools(NamedTuple):
    """What agents work with; shared by all of a process."""

    engine: Engine
    chat: Chat
    sandbox: Sandbox


async def run_agent(role: Role, tools: Tools, clock: AttemptClock, *, seed: int) -> Rollout:
    """One rollout, over by the deadline of `clock` or soon after. Raises nothing but CancelledError."""
    rollout = Rollout()
    clock.turn_to("agent")
    try:
        async with AsyncExitStack() as stack:
            end = await _end_of(AgentLoop(role, tools, rollout, clock, seed=seed, stack=stack), clock)
            clock.turn_to("sandbox")
    except UnavailableError as error:  # of the workspace's end
        end = InfrastructureFault(str(error))
    return ended(rollout, end, clock)


async def _end_of(loop: "AgentLoop", clock: AttemptClock) -> AttemptEnd:
    """Runs the loop; how it ended."""
    try:
        async with asyncio.timeout(clock.left_s + DEADLINE_GRACE_S):
            await loop.run()
    except TimeoutError:
        return out_of_time(clock)
    except UnavailableError as error:
        return InfrastructureFault(str(error))
    except WorkspaceError as error:
        return AgentFault(str(error))
    except AttemptEnd as end:
        return end


def ended(rollout: Rollout, end: AttemptEnd, clock: AttemptClock) -> Rollout:
    """The rollout with how it ended and where its time went."""
    rollout.status, rollout.failure, rollout.infrastructure = end.status, str(end), end.infrastructure
    if end.status != "completed":
        rollout.result = ""
    rollout.times = clock.times()
    rollout.started_at, rollout.duration_s = clock.started_at, clock.duration_s
    return rollout


def out_of_time(clock: AttemptClock) -> AttemptEnd:
    """The end of an attempt whose time is up: the agent's doing only if it has used up its own time."""
    if clock.is_agent_over:
        return AgentTooSlow(f"agent_timeout_s: expected an end within {clock.agent_timeout_s:g} s of own work, got none")
    what = {"engine": "an answer of the engine", "sandbox": "a sandbox"}.get(clock.part, "an end of the attempt")
    return DeadlinePassed(f"deadline: expected {what} before it, got none")


class AgentLoop:
    """The state of one rollout on its way."""

    def __init__(
        self, role: Role, tools: Tools, rollout: Rollout, clock: AttemptClock, *, seed: int, stack: AsyncExitStack
    ) -> None:
        self._role = role
        self._limits = role.limits
        self._tools = tools
        self._rollout = rollout
        self._clock = clock
        self._seed = seed
        self._stack = stack
        self._workspace: Workspace | None = None
        self._mark = f"submitted-{secrets.token_hex(8)}"

    async def run(self) -> Never:
        """Turns until an AttemptEnd is raised."""
        self._open()
        while True:
            await self.step()

    async def step(self) -> None:
        self._observe(await self._act(await self._complete()))

    def _open(self) -> None:
        """The first context: what the chat template makes of the role's messages."""
        self._rollout.messages += self._role.messages()
        rendered = [{"role": message.role, "content": message.content} for message in self._rollout.messages]
        self._rollout.context.give(self._tools.chat.render(rendered))

    async def _complete(self) -> str:
        """Samples a turn; the text of it."""
        rollout, limits, clock = self._rollout, self._limits, self._clock
        self._check_time()
        params = SamplingParams(
            temperature=limits.temperature,
            max_new_tokens=limits.max_new_tokens,
            seed=turn_seed(self._seed, rollout.num_turns),
            timeout_s=clock.agent_left_s,
            deadline_s=clock.left_s,
        )
        clock.turn_to("engine")
        completion = await self._tools.engine.generate(list(rollout.context.token_ids), params)
        rollout.generation_s += clock.end_turn(completion.sampling_s)
        rollout.context.sampled(completion)
        text = self._tools.chat.decode(completion.token_ids)
        if completion.token_ids:
            rollout.num_turns += 1
            rollout.messages.append(Message(role="assistant", content=text))
        if completion.finish == "length":
            raise LimitReached(f"tokens: expected an end of the turn within {limits.max_new_tokens} or the context, got none")
        if completion.finish == "time":
            raise out_of_time(clock)
        return text

    async def _act(self, completion: str) -> str:
        """Runs the completion's action; what the agent is told of it."""
        action = parse_action(completion)
        if action is None:
            if self._rollout.num_turns >= self._limits.max_turns:
                raise AgentFault("action: expected a fenced bash block in the last turn, got none")
            return NO_ACTION
        workspace = await self._open_workspace()
        timeout_s = min(self._limits.command_timeout_s, self._check_time())
        result = await workspace.run(with_submit(action, self._mark), timeout_s)
        if self._mark in result.output:
            self._clock.turn_to("sandbox")
            self._rollout.result = await self._role.result(workspace)
            raise Submitted
        if result.is_timeout and timeout_s < self._limits.command_timeout_s:
            raise out_of_time(self._clock)
        return format_observation(result, timeout_s)

    async def _open_workspace(self) -> Workspace:
        """The agent's workspace, made at the first action: while it samples it holds no sandbox."""
        if self._workspace is None:
            self._clock.turn_to("sandbox")
            self._workspace = await self._stack.enter_async_context(self._tools.sandbox.workspace(self._role.tree))
            self._clock.turn_to("agent")
        return self._workspace

    def _observe(self, observation: str) -> None:
        if self._rollout.num_turns >= self._limits.max_turns:
            raise LimitReached(f"turns: expected submit within {self._limits.max_turns}, got none")
        self._rollout.messages.append(Message(role="user", content=observation))
        self._rollout.context.give(self._tools.chat.render_turn(observation))

    def _check_time(self) -> float:
        """Seconds that the agent's next work may take; raises AgentTooSlow or DeadlinePassed if there are none."""
        left_s = min(self._clock.agent_left_s, self._clock.left_s)
        if left_s <= 0:
            raise out_of_time(self._clock)
        return left_s


def turn_seed(seed: int, turn: int) -> int:
    """Another seed for each turn of a rollout, from 0; that of the first is the rollout's."""
    return (seed + turn * 0x9E3779B97F4A7C15) & ((1 << 63) - 1)


def with_submit(action: str, mark: str) -> str:
    """The script with `submit`: a function whose only effect is to print the mark and leave the shell."""
    return f"submit() {{ printf '\\n%s\\n' {mark}; exit 0; }}\n{action}"
