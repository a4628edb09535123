"""The runtime of a stage: a member of its group, and a lane for each partition number that it owns (of a source: for 0 only).

A rebalance alone stops no handler: nothing new begins until the group is divided anew, what is finished is committed before,
and a number that comes back keeps its lane. One that went elsewhere is abandoned: its handlers are cancelled, and what they
have finished gets a last commit, before the new owner's producer fences ours. A source that loses its place ends: what it
knows would be stale if it came back.

A stage that is told to stop begins nothing new and keeps its place in the group while its work goes on (`drain_s`).
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from gagar.errors import FencedError
from gagar.health.reporter import HealthReporter
from gagar.health.vitals import Vitals
from gagar.stream.handlers import Effect, Reducer, Source
from gagar.stream.lanes.budget import MAX_WAIT_S
from gagar.stream.lanes.context import StageContext
from gagar.stream.lanes.lane import Lane
from gagar.stream.lanes.reducing import ReducerWork, StreamTime
from gagar.stream.lanes.sourcing import SourceWork
from gagar.stream.lanes.vitals import vitals_of
from gagar.stream.lanes.work import HandlerWork, Work
from gagar.stream.limits import RuntimeLimits, log_counts
from gagar.stream.loop_monitor import LoopMonitor
from gagar.stream.pinned_topics import PinnedTopics
from gagar.stream.readers.references import LogReferences
from gagar.stream.readers.tables import TableFollower
from gagar.stream.spec import Stage, Topic
from gagar.stream.together import bounded, gathered, together, until
from gagar.stream.transport import Membership, Transport

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""Beyond the times that a reader may wait for the log and for the turns of other lanes, before it counts as stuck."""


class StageRuntime:
    """See the module. `run` returns after `stop` is set, and raises what ends the stage otherwise."""

    def __init__(
        self,
        stage: Stage,
        handler: Effect | Reducer[Any] | Source,
        transport: Transport,
        dead_letters: Topic,
        limits: RuntimeLimits | None = None,
        num_partitions: int | None = None,
        health: HealthReporter | None = None,
    ) -> None:
        """`num_partitions`: that grouped topics must have; none: any, if all have the same. `health`: who tells how it is."""
        self.lanes: dict[int, Lane] = {}
        self._stage = stage
        self._handler = handler
        self._transport = transport
        self._limits = limits or RuntimeLimits()
        self._context = StageContext.of(stage, transport, dead_letters, self._limits, self.lanes)
        self.counters = self._context.counters
        topics = stage.all_topics(dead_letters)
        self._topics = PinnedTopics(f"stage {stage.name}", transport, topics, num_partitions)
        self._membership: Membership | None = None
        self._tables = TableFollower(stage.name, transport, stage.tables, handler.observe, self._limits)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._broken: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        """The planned end of a source."""
        self._at_once = asyncio.Event()
        self._drained = asyncio.Event()
        self._is_draining = self._is_closing = False
        self._is_open = False
        self._health = health

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set or nothing is due ever again."""
        self._broken = asyncio.get_running_loop().create_future()
        if self._health is not None:
            self._health.follow(self.vitals)
        await self._topics.pin()
        references = LogReferences(self._transport, self._stage.references)
        monitor = LoopMonitor(self._stage.name, self.counters)
        monitor.start()
        try:
            await until(stop, self._open_handler(references))
            if not stop.is_set():
                await self._serve(stop)
        finally:
            monitor.stop()
            await self._close(references)

    @property
    def has_joined(self) -> bool:
        """Whether it is a member of the stage's group: before that nothing is in work."""
        return self._membership is not None

    def vitals(self) -> Vitals:
        """How the stage is now. What goes on all the time: the reading of a lane that nothing holds back, and of the tables."""
        lanes, tables_at = vitals_of(self.lanes.values()), self._tables.polled_at
        signs = [at for at in (lanes.idle_since, tables_at) if at is not None]
        is_stopping = self._is_draining or self._is_closing
        return Vitals(
            at=time.monotonic(),
            phase="stopping" if is_stopping else "working" if self.has_joined else "starting",
            is_member=self._membership is not None and self._membership.is_held,
            num_partitions=lanes.num_partitions,
            num_waiting=lanes.num_waiting,
            silent_s=lanes.silent_s,
            polled_at=max((at for at in (lanes.polled_at, tables_at) if at is not None), default=None),
            active_at=min(signs, default=None),
            patience_s=2 * self._limits.stall_s + PATIENCE_S + lanes.num_partitions * MAX_WAIT_S,
            lag=lanes.lag,
            num_in_work=lanes.num_in_work,
            is_breaker_open=self.counters.breaker_open,
        )

    def stop_at_once(self) -> None:
        """Work that a stop waits for is abandoned."""
        self._at_once.set()

    async def on_revoked(self) -> None:
        """Owner: begins nothing more until the group is divided; commits what is finished, as far as that is quickly done."""
        lanes = list(self.lanes.values())
        for lane in lanes:
            lane.pause()
        if not await bounded(gathered([lane.flush() for lane in lanes]), self._limits.revoke_s):
            log.warning("rebalance before everything finished was committed stage=%s", self._stage.name)

    def on_assigned(self, numbers: frozenset[int]) -> None:
        """Owner: keeps the lanes that stay, abandons those that went, starts those that came."""
        if self._is_closing or self._membership is None:
            return
        log.info("partitions assigned stage=%s numbers=%s", self._stage.name, sorted(numbers))
        is_source = isinstance(self._handler, Source)
        due = numbers & {0} if is_source else numbers
        for number in sorted(self.lanes.keys() - due):
            self._abandon(number)
            if is_source:
                name = self._stage.name
                self._break(FencedError(f"stage {name}: expected to keep its place, got a rebalance; start it again"))
        for lane in self.lanes.values():
            lane.resume()
        is_shared = len(numbers) < self._topics.count_partitions(self._stage.divided[0])
        for number in sorted(due - self.lanes.keys()) if not self._is_draining else ():
            self._start(number, self._limits.handover_s if is_shared else 0.0)

    async def _open_handler(self, references: LogReferences) -> None:
        if not isinstance(self._handler, Source):  # which reads its tables after the cursor
            await self._tables.load()
        await self._handler.open(references)
        self._is_open = True

    async def _serve(self, stop: asyncio.Event) -> None:
        membership = self._transport.join(self._stage.name, self._stage.divided, self)
        self._membership = membership
        try:
            counting = log_counts(self._stage.name, self.counters)
            pinned = self._topics.watch(self._limits.pin_check_s)
            serving = together(membership.run(), self._watch(), self._tables.follow(), counting, pinned, self._drain(stop))
            await until(self._drained, serving)
        finally:
            self._is_closing = True
            lanes = list(self.lanes.values())
            for number in list(self.lanes):
                self._abandon(number)
            if not await bounded(self._leave(membership, lanes), self._limits.close_s):
                log.warning("stopped before all connections had closed stage=%s", self._stage.name)

    async def _leave(self, membership: Membership, lanes: Sequence[Lane]) -> None:
        """Gives up the place in the group, once the last commits have been made: a successor would fence them."""
        await gathered([lane.left.wait() for lane in lanes])
        await gathered([*self._tasks.values(), membership.close()])

    def _start(self, number: int, handover_s: float) -> None:
        assert self._membership is not None
        lane = self.lanes[number] = Lane(number, self._membership, self._context, self._make_work)
        running = self._run_lane(lane, self._tasks.get(number), handover_s)
        task = asyncio.create_task(running, name=f"lane {self._stage.name}.{number}")
        self._tasks[number] = task
        task.add_done_callback(self._check)

    async def _run_lane(self, lane: Lane, predecessor: asyncio.Task[None] | None, handover_s: float) -> None:
        """A number that went and came back waits for the end of what it was, even if it goes once more meanwhile; one that was
        another's leaves its last commit time, before the take-over fences it."""
        if predecessor is not None:
            await asyncio.wait([predecessor])
        if handover_s:
            await bounded(lane.left.wait(), handover_s)
        await lane.run()

    def _abandon(self, number: int) -> None:
        self.lanes.pop(number).abandon()
        self._context.budget.changed.set()

    def _check(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def _watch(self) -> None:
        assert self._broken is not None
        await asyncio.shield(self._broken)

    async def _drain(self, stop: asyncio.Event) -> None:
        """Once it is to end: intake is over; what is in work ends by its deadline, and before `stop_at_once`, or is abandoned.

        Until then the place in the group is kept: partitions on which work goes on do not move.
        """
        await until(stop, self._ended.wait())
        self._is_draining = True
        lanes = list(self.lanes.values())
        for lane in lanes:
            lane.stop_reading()
        is_in_time = await bounded(until(self._at_once, self._end_work(lanes)), self._limits.drain_s)
        if not is_in_time or self._at_once.is_set():
            log.warning("stopped before all work had ended stage=%s", self._stage.name)
        self._drained.set()

    async def _end_work(self, lanes: Sequence[Lane]) -> None:
        await gathered([lane.drain() for lane in lanes])

    async def _close(self, references: LogReferences) -> None:
        if self._is_open and not await bounded(self._handler.close(), self._limits.close_s):
            log.warning("handler did not close in time stage=%s", self._stage.name)
        await bounded(gathered((references.close(), self._tables.close())), 1.0)
        log.info("stage ended stage=%s %s", self._stage.name, self.counters.line())

    def _make_work(self, lane: Lane) -> Work:
        if isinstance(self._handler, Effect):
            return HandlerWork(lane, self._handler.handle, self._context)
        if isinstance(self._handler, Source):
            return SourceWork(lane, self._handler, self._tables, self._context, self._ended)
        return ReducerWork(lane, self._handler, self._context, StreamTime(self._context.transport.clock.now))
