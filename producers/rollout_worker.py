"""Rollout worker: requests in, the attempts made with the newest policy out.

Input   rollout-requests   one RolloutRequest
Table   policy-versions    the last PolicyVersion is the one to sample with; loaded while attempts run
Output  trajectory-tokens  TrajectoryTokens of the attempt, unless nothing was sampled
        trajectories       one Trajectory for every request, same key
State   none

Nothing is sampled before a published version is loaded. A version whose files are gone, damaged or another model's is refused
and the one before stays. An outage of engine or sandbox is retried until the request's deadline.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gagar.config import require, require_duration
from gagar.engine.kinds import EngineKind, make_engine
from gagar.errors import BadRecordError, UnavailableError
from gagar.records import PolicyVersion, Record, RolloutRequest
from gagar.sandbox.kinds import SandboxKind, make_sandbox
from gagar.sandbox.limits import Limits
from gagar.stream.handlers import Delivery, Effect, Output, References, Settings
from gagar.tasks.task import Task, load_tasks

if TYPE_CHECKING:
    from gagar.agent.loop import Attempt, AttemptLimits
    from gagar.engine.protocol import Engine
    from gagar.sandbox.protocol import Sandbox


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[rollout_worker] in the run file."""

    engine: EngineKind = "transformers"
    """What samples."""
    device: str = "auto"
    """Of the engine: auto, cpu, cuda; auto takes a GPU if there is one."""
    num_threads: int = 1
    """CPU threads of the engine. More than one helps only where as many cores are idle; else they wait for each other."""
    max_cache_tokens: int = 1 << 18
    """Rows x positions of the engine's key-value cache; more attempts wait."""
    sandbox: SandboxKind = "bubblewrap"
    """What commands run in."""
    sandbox_concurrency: int = 2
    """Workspaces at a time; about the number of cores."""
    limits: Limits = Limits()
    """What one workspace may use."""
    concurrency: int = 64
    """Attempts at a time."""
    max_turns: int = 1
    """Of one attempt."""
    max_new_tokens: int = 96
    """Of one turn."""
    evaluation_temperature: float = 1.0
    """Of attempts of purpose evaluation; those of training use `training.temperature`."""
    command_timeout_s: float = 60.0
    """Of one command."""
    system_prompt: str = ""
    """Before the task's statement; empty: none."""

    def __post_init__(self) -> None:
        is_device = self.device in ("auto", "cpu", "cuda") or self.device.removeprefix("cuda:").isdigit()
        require(is_device, "rollout_worker.device", "auto, cpu, cuda or cuda:N", self.device)
        require(1 <= self.num_threads <= 1024, "rollout_worker.num_threads", "1 to 1024", self.num_threads)
        require(self.max_cache_tokens >= 1024, "rollout_worker.max_cache_tokens", "1024 or more", self.max_cache_tokens)
        concurrency = self.sandbox_concurrency
        require(1 <= concurrency <= 1024, "rollout_worker.sandbox_concurrency", "1 to 1024", concurrency)
        require(1 <= self.concurrency <= 4096, "rollout_worker.concurrency", "1 to 4096", self.concurrency)
        require(1 <= self.max_turns <= 1024, "rollout_worker.max_turns", "1 to 1024", self.max_turns)
        require(1 <= self.max_new_tokens <= 1 << 20, "rollout_worker.max_new_tokens", "1 to 1048576", self.max_new_tokens)
        temperature = self.evaluation_temperature
        require(0 < temperature <= 10, "rollout_worker.evaluation_temperature", "more than 0, at most 10", temperature)
        require_duration(self.command_timeout_s, "rollout_worker.command_timeout_s")


class MakeRollouts(Effect):
    """Makes each attempt with an Engine and a Sandbox."""

    def __init__(self, settings: Settings[Config], engine: "Engine", sandbox: "Sandbox") -> None:
        from gagar.policies.follower import PolicyFollower

        self._settings = settings
        self._engine = engine
        self._sandbox = sandbox
        self._policy = PolicyFollower(engine)
        self._places = asyncio.Semaphore(settings.config.concurrency)
        self._tasks: dict[str, Task] = {}
        self._outages: dict[str, str] = {}
        """Faults of the infrastructure that requests under way have met, by request."""

    async def open(self, references: References) -> None:
        run = self._settings.run
        for path in (run.tasks.train, run.tasks.heldout):
            self._tasks |= {task.task_id: task for task in load_tasks(run.resolve(path))}
        await self._sandbox.open()
        await self._engine.open()
        self._policy.start()

    def observe(self, record: Record) -> None:
        """The last record in log order is the policy to sample with."""
        if isinstance(record, PolicyVersion):
            self._policy.offer(record)

    async def handle(self, delivery: Delivery[RolloutRequest]) -> Sequence[Output]:
        from gagar.agent.publishing import outputs_of
        from topology.topics import TRAJECTORIES, TRAJECTORY_TOKENS

        request = delivery.record
        task = self._tasks.get(request.task_id)
        if task is None:
            raise BadRecordError(f"request {delivery.ref}: expected a task of [tasks], got {request.task_id!r}")
        try:
            attempt = await self._attempt(request, task, str(delivery.ref))
            if attempt.infrastructure and time.time() < request.deadline:
                raise UnavailableError(attempt.failure)
        except UnavailableError as error:
            self._outages[str(delivery.ref)] = str(error)
            raise
        self._outages.pop(str(delivery.ref), None)
        return outputs_of(delivery, attempt, TRAJECTORY_TOKENS.max_record_bytes, TRAJECTORIES.max_record_bytes)

    async def _attempt(self, request: RolloutRequest, task: Task, ref: str) -> "Attempt":
        """Waits for a policy and a place, then makes the attempt; past the deadline it ends with nothing sampled."""
        from gagar.agent.loop import Attempt, run_attempt

        start = time.time()
        try:
            async with asyncio.timeout(request.deadline - start):
                await asyncio.sleep(0)  # a deadline that has passed shows at the first wait only
                await self._policy.ready()
                await self._places.acquire()
        except TimeoutError:
            outage = self._outages.get(ref, "")
            failure = outage or "deadline: expected a place before it, got none"
            return Attempt(
                status="timeout",
                failure=failure,
                infrastructure=bool(outage),
                started_at=start,
                duration_s=time.time() - start,
            )
        try:
            limits = self._limits(request)
            return await run_attempt(task, self._engine, self._sandbox, limits, seed=request.seed, deadline=request.deadline)
        finally:
            self._places.release()

    def _limits(self, request: RolloutRequest) -> "AttemptLimits":
        from gagar.agent.loop import AttemptLimits

        config, training = self._settings.config, self._settings.run.training
        is_training = request.purpose == "training"
        return AttemptLimits(
            max_turns=config.max_turns,
            max_new_tokens=config.max_new_tokens,
            command_timeout_s=config.command_timeout_s,
            temperature=training.temperature if is_training else config.evaluation_temperature,
            system_prompt=config.system_prompt,
        )

    async def close(self) -> None:
        await self._policy.close()
        await self._engine.close()
        await self._sandbox.close()


def main(settings: Settings[Config]) -> None:
    """Runs the stage until it is told to stop."""
    from gagar.cli.serve import serve
    from topology.stages import ROLLOUT_WORKER

    config = settings.config
    engine = make_engine(
        config.engine,
        settings.run.resolve(settings.run.policy.path),
        max_running=config.concurrency,
        max_cache_tokens=config.max_cache_tokens,
        num_threads=config.num_threads,
        device=config.device,
    )
    sandbox = make_sandbox(config.sandbox, concurrency=config.sandbox_concurrency, limits=config.limits)
    serve(ROLLOUT_WORKER, settings, MakeRollouts(settings, engine, sandbox))
