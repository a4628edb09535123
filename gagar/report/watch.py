"""Watches a run until it ends: follows its topics, asks for lags, shows the moment.

In: the supervisor, a stream of deliveries, a function that tells lags. Out: how the run ended. Kept: the progress, the largest
memory use. Promised: a run in which nothing moves any more is reported after `STALL_S`. Nothing is started or stopped here.
"""

import asyncio
import logging
import os
import time
from asyncio import Task
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal, Protocol

from gagar.errors import GagarError
from gagar.processes.supervised import ProcessState
from gagar.report.progress import Progress, Snapshot
from gagar.report.terminal import Plan, Rates, Screen, StageRow
from gagar.stream.handlers import Delivery
from gagar.stream.spec import Stage

logger = logging.getLogger(__name__)

STALL_S = 120.0
"""Without a new record on any topic for so long, the run is given up."""
START_S = 900.0
"""The same before the first record: models and libraries are read meanwhile, which took six minutes on a busy machine."""
MEASURE_S = 2.0

Ending = Literal["planned", "failed", "stalled", "interrupted"]
Lags = Callable[[], Mapping[str, int]]
"""Records not yet finished, by stage. It may block for a while; it is called in a thread."""


class Stages(Protocol):
    """The running stages."""

    def states(self) -> Sequence[ProcessState]: ...

    async def wait(self) -> int:
        """Returns when the run has ended: 0 for the planned end."""


class Display(Protocol):
    """Where the moment is shown."""

    interval_s: float

    def show(self, screen: Screen) -> None: ...


class Watch:
    """One run under observation."""

    def __init__(
        self, plan: Plan, lags: Lags, memory: Callable[[], int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.progress = Progress()
        self.peak_memory_bytes = 0
        self.code = 0
        """What the stages ended with."""
        self.trouble = ""
        """What went wrong last, in a line; for the screen."""
        self.started = clock()
        self._plan = plan
        self._lags_of = lags
        self._memory_of = memory
        self._clock = clock
        self._rates = Rates()
        self._lags: Mapping[str, int] = {}
        self._num_seen = 0
        self._moved_at = self.started

    async def until_end(
        self, stages: Stages, deliveries: AsyncGenerator[Delivery[Any], None], display: Display, interrupted: asyncio.Event
    ) -> Ending:
        """Shows the run until it ends, however it does. Raises what reading the topics raises."""
        self.started = self._moved_at = self._clock()
        follow = asyncio.create_task(self._follow(deliveries))
        ended = asyncio.create_task(stages.wait())
        stop = asyncio.create_task(interrupted.wait())
        side = asyncio.create_task(self._measure())
        tasks = (ended, stop, follow, side)
        try:
            while True:
                await asyncio.wait(tasks, timeout=display.interval_s, return_when=asyncio.FIRST_COMPLETED)
                display.show(self.screen(stages.states()))
                ending = self._ending(ended, stop, (follow, side))
                if ending is not None:
                    return ending
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ending(self, ended: Task[int], stop: Task[Any], endless: Sequence[Task[None]]) -> Ending | None:
        """How the run has ended, if it has; `endless` tasks end by an error only."""
        if stop.done():
            return "interrupted"
        if ended.done():
            self.code = ended.result()
            return "planned" if self.code == 0 else "failed"
        for task in endless:
            if task.done():
                task.result()
        return "stalled" if self.idle_s() > (STALL_S if self._num_seen else START_S) else None

    def elapsed_s(self) -> float:
        """Seconds since the watch began."""
        return self._clock() - self.started

    def idle_s(self) -> float:
        """Seconds since the last new record."""
        num_seen = self.progress.num_records
        if num_seen != self._num_seen:
            self._num_seen, self._moved_at = num_seen, self._clock()
        return self._clock() - self._moved_at

    async def _follow(self, deliveries: AsyncGenerator[Delivery[Any], None]) -> None:
        async with aclosing(deliveries) as source:
            async for delivery in source:
                self.progress.apply(delivery)

    async def _measure(self) -> None:
        """Lags and memory, every few seconds, off the loop: both block."""
        while True:
            memory = await asyncio.to_thread(self._memory_of)
            self.peak_memory_bytes = max(self.peak_memory_bytes, memory)
            try:
                self._lags = await asyncio.to_thread(self._lags_of)
            except GagarError as error:  # a picture without lags is better than none
                logger.warning("lags unknown error=%s", error)
            await asyncio.sleep(MEASURE_S)

    def screen(self, states: Sequence[ProcessState]) -> Screen:
        """The moment."""
        snapshot = self.progress.snapshot()
        self._rates.update(self._clock(), snapshot.records)
        return Screen(
            plan=self._plan,
            phase=phase(snapshot),
            elapsed_s=self.elapsed_s(),
            stages=[self._row(stage, states) for stage in self._plan.stages],
            snapshot=snapshot,
            trouble=self.trouble,
        )

    def _row(self, stage: Stage, states: Sequence[ProcessState]) -> StageRow:
        own = [state for state in states if stage_name(state.name) == stage.name]
        return StageRow(
            name=stage.name,
            num_up=sum(state.pid is not None for state in own),
            num_processes=len(own),
            num_restarts=sum(state.restarts for state in own),
            lag=self._lags.get(stage.name),
            rate=self._rates.rate(own_topics(stage, self._plan.stages)),
        )


def stage_name(process_name: str) -> str:
    """The stage of a process: `verifier` of `verifier.1`."""
    return process_name.partition(".")[0]


def own_topics(stage: Stage, stages: Sequence[Stage]) -> list[str]:
    """Names of the topics that only this stage writes and that the view reads; they tell its rate."""
    others = {topic.name for other in stages if other.name != stage.name for topic in other.outputs}
    return [topic.name for topic in stage.outputs if topic.name not in others]


def phase(snapshot: Snapshot) -> str:
    """What goes on, in a word or two."""
    if snapshot.version < 0:
        return "starting"
    if snapshot.is_last:
        return "last evaluation"
    return "training" if snapshot.step else "first evaluation"


def resident_bytes(extra_pid: int | None = None) -> int:
    """Sum of the resident sets of this process, of all below it, and of `extra_pid` and all below that; shared pages count
    for each."""
    import psutil

    total = 0
    for root in {os.getpid(), extra_pid or os.getpid()}:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(root)
            for member in [process, *process.children(recursive=True)]:
                with suppress(psutil.Error):
                    total += member.memory_info().rss
    return total
