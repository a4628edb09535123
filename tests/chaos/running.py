"""One run from its first process to its judgement: topics made, stages started, events fired if any, everything stopped, what
lies in the topics read.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

import click
import msgspec

from gagar.config import KafkaTable
from gagar.stream.kafka.admin import Admin
from gagar.stream.kafka.initial_offsets import commit_initial_offsets
from tests.chaos.expected_outcomes import NUM_EVALUATIONS
from tests.chaos.facts import Facts, gather
from tests.chaos.judge import Judgement, judge
from tests.chaos.memory import Growth, MemorySample, broker_pids, grown, growth, watch_memory
from tests.chaos.plan import SOAK_GROUPS, STAGE_NAMES, Plan, real_topics
from tests.chaos.restarts import Waste, Watched, waste
from tests.chaos.slots import Exit, Slot, slots
from tests.chaos.watching import Progress, watching
from topology.stages import STAGES

POLL_S = 0.25
TELL_S = 5.0
MAX_UNEXPECTED = 20
"""Unexpected ends of processes, after which nothing more is hoped for."""


class Log:
    """What happened in a run, for its report."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        """Those that really happened, by kind."""
        self.hits: Counter[str] = Counter()
        """The same, by kind and target."""
        self.in_vain: Counter[str] = Counter()
        """Those that met nobody."""
        self.last_event = "none"
        self.exits: list[Exit] = []
        self.restarted: list[str] = []
        """Handlers that scaling has restarted in place."""
        self.num_kept = 0
        """Handlers that were in work, on partitions that their process kept, while their stage was scaled."""
        self.late_stops: list[str] = []

    def fired(self, kind: str, target: str) -> None:
        """An event begins."""
        self.last_event = f"{kind} {target}"

    def told(self, kind: str, target: str, *, happened: bool) -> None:
        """An event is over."""
        if not happened:
            self.in_vain[kind] += 1
            return
        self.events[kind] += 1
        self.hits[f"{kind} {target}"] += 1

    def watch(self, found: Watched) -> None:
        """A stage has been scaled."""
        self.num_kept += found.num_kept
        self.restarted += found.restarted

    @property
    def unexpected_exits(self) -> list[str]:
        return [f"{end.stage} {end.code}: {end.told}" for end in self.exits if not end.is_expected]


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is over."""

    plan: Plan
    facts: Facts
    judgement: Judgement
    log: Log
    waste: Waste
    memory: dict[str, Growth]
    """Of each stage; of broker and driver for information."""
    stream_s: float
    """From the first process to the sampler's end."""
    is_complete: bool
    """The sampler came to its planned end, in time."""

    @property
    def faults(self) -> dict[str, list[str]]:
        """What does not hold of this run alone."""
        log = self.log
        return {
            **self.judgement.faults,
            **{
                name: texts
                for name, texts in (
                    ("planned end", [] if self.is_complete else ["expected in time, got none"]),
                    ("unexpected exits", log.unexpected_exits),
                    ("late stops", log.late_stops),
                    ("restarted handlers", log.restarted),
                    ("begun after loss", self.waste.begun_after_loss),
                    ("memory", grown(self.memory, STAGE_NAMES) if self.plan.num_groups >= SOAK_GROUPS else []),
                )
                if texts
            },
        }


Fire = Callable[[Mapping[str, Slot], Log], Coroutine[None, None, None]]
"""Fires events until it is cancelled; leaves nothing broken behind."""


async def run_once(plan: Plan, holder: Path, timeout_s: float, fire: Fire | None = None) -> Course:
    """The whole stream, once."""
    with Admin(KafkaTable(bootstrap_servers=plan.servers)) as admin:
        admin.apply(plan.run, real_topics())
        commit_initial_offsets(admin, plan.run, STAGES)
    log, began, samples = Log(), time.monotonic(), list[MemorySample]()
    async with watching(plan.servers, plan.name) as progress, slots(plan, holder, log.exits.append) as stages:

        def processes() -> dict[str, list[int]]:
            alive = {name: [process.pid for process in slot.alive] for name, slot in stages.items()}
            return {**alive, "broker": broker_pids(holder, plan.num_brokers), "driver": [os.getpid()]}

        firing = asyncio.create_task(fire(stages, log)) if fire else None
        beside = [asyncio.create_task(tell(plan, progress, log)), asyncio.create_task(watch_memory(processes, samples))]
        try:
            is_complete = await ended(stages["sampler"], firing, log, timeout_s)
            stream_s = time.monotonic() - began
        finally:
            await cancelled(firing)
        is_complete = is_complete and await settled(plan, progress, stages["learner"])
        for task in beside:
            await cancelled(task)
    log.late_stops = [f"{name} {seconds:.1f} s" for name, slot in stages.items() for seconds in slot.late_stops]
    facts = await gather(plan)
    return Course(
        plan=plan,
        facts=facts,
        judgement=await judge(plan, facts),
        log=log,
        waste=waste(Path(plan.directory)),
        memory=growth(samples),
        stream_s=stream_s,
        is_complete=is_complete,
    )


async def ended(sampler: Slot, firing: "asyncio.Task[None] | None", log: Log, timeout_s: float) -> bool:
    """Whether the sampler has come to its planned end in time; raises what the firing raised. Stages that die of themselves
    again and again are not waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not sampler.is_finished and len(log.unexpected_exits) < MAX_UNEXPECTED:
        if firing is not None and firing.done():
            firing.result()
        await asyncio.sleep(POLL_S)
    return sampler.is_finished


async def settled(plan: Plan, progress: Progress, learner: Slot, timeout_s: float = 120.0) -> bool:
    """Whether every group has ended for good: a learner that has just been shot may still go back to its checkpoint."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if progress.newest_at > learner.started_at and progress.num_ended >= plan.num_groups + NUM_EVALUATIONS:
            return True
        await asyncio.sleep(POLL_S)
    return False


async def cancelled(task: "asyncio.Task[None] | None") -> None:
    """Ends a task and waits for it."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def tell(plan: Plan, progress: Progress, log: Log) -> None:
    """Progress, for whoever waits."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(TELL_S)
        passed_s = time.monotonic() - began
        groups = f"{progress.num_ended}/{plan.num_groups + NUM_EVALUATIONS} groups"
        click.echo(f"  {plan.name} {passed_s:4.0f} s  {groups}  last event: {log.last_event}", err=True)
