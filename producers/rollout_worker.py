"""Rollout worker: requests in, the attempts made with the newest policy out.

Input   rollout-requests   one RolloutRequest
Table   policy-versions    the last PolicyVersion is the one to sample with; loaded while attempts run
Output  trajectory-tokens  TrajectoryTokens of the attempt, unless nothing was sampled
        trajectories       one Trajectory for every request, same key
State   none

Nothing is sampled before a published version is loaded. A version whose files are gone, damaged or another model's is refused
and the one before stays. An outage of engine or sandbox is retried until the request's deadline; each try has all of the
agent's own time. A deadline that comes while some of that is left ends the attempt on account of the infrastructure: `invalid`.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from gagar.agent.clock import AttemptClock
from gagar.agent.ending import DeadlinePassed
from gagar.agent.loop import Rollout, Tools, ended, run_agent
from gagar.agent.publishing import outputs_of
from gagar.agent.role import AgentLimits
from gagar.agent.solver import Solver
from gagar.config import Seconds, TrainingTable, WorkTable
from gagar.engine.kinds import EngineKinds, Transformers
from gagar.errors import BadRecordError, UnavailableError
from gagar.policies.chat_template import ChatTemplate
from gagar.policies.follower import PolicyFollower
from gagar.records import PolicyVersion, Record, RolloutRequest
from gagar.sandbox.kinds import Auto, SandboxKinds
from gagar.stream.handlers import Delivery, Effect, Output, References
from gagar.tasks.kinds import Tasks
from gagar.tasks.task import Task
from topology.resources import Resources
from topology.topics import TRAJECTORIES, TRAJECTORY_TOKENS


class Config(WorkTable, frozen=True, kw_only=True):
    """[rollout_worker] in the run file."""

    engine: EngineKinds = Transformers()
    """Engine that samples the tokens."""
    sandbox: SandboxKinds = Auto()
    """Sandbox that the agent's commands run in."""
    sandbox_concurrency: Annotated[int, Meta(ge=1, le=1024)] = 2
    """Workspaces that run at the same time; about the number of cores."""
    concurrency: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Attempts that run at the same time."""
    max_turns: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Most turns of one attempt."""
    max_new_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] = 96
    """Most tokens of one turn."""
    evaluation_temperature: Annotated[float, Meta(gt=0, le=10)] = 1.0
    """Temperature of evaluation rollouts; training rollouts use `training.temperature`."""
    command_timeout_s: Seconds = 60.0
    """Seconds that one command may take."""
    system_prompt: str = ""
    """System message before the task's statement; empty: no system message."""


class MakeRollouts(Effect):
    """Makes each attempt with an Engine and a Sandbox."""

    def __init__(self, training: TrainingTable, config: Config, tasks: Tasks, tools: Tools) -> None:
        self._training = training
        self._config = config
        self._tasks = tasks
        self._tools = tools
        self._policy = PolicyFollower(tools.engine)
        self._places = asyncio.Semaphore(config.concurrency)
        self._outages: dict[str, str] = {}
        """Faults of the infrastructure that requests under way have met, by request."""

    async def open(self, references: References) -> None:
        await self._tools.sandbox.open()
        await asyncio.to_thread(self._tools.chat.open)
        await self._tools.engine.open()
        self._policy.start()

    def observe(self, record: Record) -> None:
        """The last record in log order is the policy to sample with."""
        if isinstance(record, PolicyVersion):
            self._policy.offer(record)

    async def handle(self, delivery: Delivery[RolloutRequest]) -> Sequence[Output]:
        request, ref = delivery.record, str(delivery.ref)
        clock = AttemptClock(delivery.here + request.deadline_s - time.monotonic(), request.agent_timeout_s)
        task = await asyncio.to_thread(self._tasks.find, request.task_id)
        if task is None:
            raise BadRecordError(f"request {ref}: expected a task of [tasks], got {request.task_id!r}")
        try:
            rollout = await self._attempt(request, task, clock, self._outages.get(ref, ""))
            if rollout.infrastructure and clock.left_s > 0:
                raise UnavailableError(rollout.failure)
        except UnavailableError as error:
            self._outages[ref] = str(error)
            raise
        self._outages.pop(ref, None)
        return outputs_of(delivery, rollout, TRAJECTORY_TOKENS.max_record_bytes, TRAJECTORIES.max_record_bytes)

    async def _attempt(self, request: RolloutRequest, task: Task, clock: AttemptClock, outage: str) -> Rollout:
        """Waits for a policy and a place, then makes the attempt; past the deadline it ends with nothing sampled.

        `outage`: what an earlier try has met.
        """
        awaited = "a policy"
        try:
            async with asyncio.timeout(clock.left_s):
                await asyncio.sleep(0)  # a deadline that has passed shows at the first wait only
                await self._policy.ready()
                awaited = "a place"
                await self._places.acquire()
        except TimeoutError:
            return ended(Rollout(), DeadlinePassed(outage or f"deadline: expected {awaited} before it, got none"), clock)
        try:
            solver = Solver(task, self._limits(request), self._config.system_prompt)
            return await run_agent(solver, self._tools, clock, seed=request.seed)
        finally:
            self._places.release()

    def _limits(self, request: RolloutRequest) -> AgentLimits:
        is_training = request.purpose == "training"
        return AgentLimits(
            max_turns=self._config.max_turns,
            max_new_tokens=self._config.max_new_tokens,
            command_timeout_s=self._config.command_timeout_s,
            temperature=self._training.temperature if is_training else self._config.evaluation_temperature,
        )

    async def close(self) -> None:
        await self._policy.close()
        await self._tools.engine.close()
        await self._tools.sandbox.close()


def make(resources: Resources, config: Config) -> Effect:
    """The stage's handler; raises ConfigError if the tasks cannot be read."""
    chat = ChatTemplate(resources.policy_path)
    engine, sandbox = config.engine.make(chat, config.concurrency), config.sandbox.make(config.sandbox_concurrency)
    return MakeRollouts(resources.run.training, config, resources.tasks, Tools(engine, chat, sandbox))
