"""One run from its first process to its judgement: topics made, stages started, events fired if any, everything stopped, what
lies in the topics read.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import click
import msgspec

from gagar.stream.admin import Admin
from tests.chaos.facts import Facts, gather
from tests.chaos.fate import NUM_EVALUATIONS
from tests.chaos.judge import Judgement, judge
from tests.chaos.plan import Plan, real_topics
from tests.chaos.slots import Exit, Slot, slots
from tests.chaos.watching import Progress, watching

POLL_S = 0.25
TELL_S = 5.0


class Log:
    """What happened in a run, for its report."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.last_event = "none"
        self.exits: list[Exit] = []
        self.restarted: list[str] = []
        """Handlers that scaling has restarted in place."""
        self.late_stops: list[str] = []

    @property
    def unexpected_exits(self) -> list[str]:
        return [f"{end.stage} {end.code}: {end.told}" for end in self.exits if not end.is_expected]


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is over."""

    plan: Plan
    facts: Facts
    judgement: Judgement
    log: Log
    stream_s: float
    """From the first process to the sampler's end."""
    is_complete: bool
    """The sampler came to its planned end, in time."""


Fire = Callable[[Mapping[str, Slot], Log], Awaitable[None]]
"""Fires events until it is cancelled; leaves nothing broken behind."""


async def run_once(plan: Plan, leash: Path, patience_s: float, fire: Fire | None = None) -> Course:
    """The whole stream, once."""
    with Admin(plan.servers) as admin:
        admin.apply(plan.run, real_topics())
    log, began = Log(), time.monotonic()
    async with watching(plan.servers, plan.name) as progress, slots(plan, leash, log.exits.append) as stages:
        firing = asyncio.create_task(fire(stages, log)) if fire else None
        telling = asyncio.create_task(tell(plan, progress, log))
        try:
            is_complete = await ended(stages["sampler"], firing, patience_s)
            stream_s = time.monotonic() - began
        finally:
            await cancelled(firing)
        is_complete = is_complete and await settled(plan, progress, stages["learner"])
        await cancelled(telling)
    log.late_stops = [f"{name} {seconds:.1f} s" for name, slot in stages.items() for seconds in slot.late_stops]
    facts = await gather(plan)
    return Course(
        plan=plan,
        facts=facts,
        judgement=await judge(plan, facts),
        log=log,
        stream_s=stream_s,
        is_complete=is_complete,
    )


async def ended(sampler: Slot, firing: "asyncio.Task[None] | None", patience_s: float) -> bool:
    """Whether the sampler has come to its planned end in time; raises what the firing raised."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and not sampler.is_finished:
        if firing is not None and firing.done():
            firing.result()
        await asyncio.sleep(POLL_S)
    return sampler.is_finished


async def settled(plan: Plan, progress: Progress, learner: Slot, patience_s: float = 120.0) -> bool:
    """Whether every group has ended for good: a learner that has just been shot may still go back to its checkpoint."""
    deadline = time.monotonic() + patience_s
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
