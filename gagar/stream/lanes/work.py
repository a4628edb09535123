"""What a lane does with its deliveries: hands them to handlers, many at a time.

`Work` is what a lane asks of it; `HandlerWork` serves transforms and effects. Reducers and sources are in modules of their
own.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Protocol

from gagar.errors import FencedError
from gagar.stream.lanes.context import StageContext
from gagar.stream.lanes.frontier import Frontier
from gagar.stream.lanes.reading import LaneReader
from gagar.stream.lanes.retry import Handle
from gagar.stream.lanes.units import Spot, Unit, UnitQueue
from gagar.stream.retries import is_for_another
from gagar.stream.transport import Partition, RawRecord


class LostPlaceError(FencedError):
    """The place in the log is another's for good: no take-over may follow."""


class LaneView(Protocol):
    """What work may know of its lane."""

    queue: UnitQueue

    @property
    def is_open(self) -> bool:
        """Whether new work may begin now."""

    async def opened(self) -> bool:
        """Waits while the group is divided anew; whether new work may begin then. If not, none ever may."""

    def finish(self, unit: Unit) -> None:
        """Puts a finished unit up for commit."""

    def is_finished(self, spot: Spot) -> bool:
        """Whether an input's unit is committed or waits for it."""

    def lagging(self) -> Iterable[Partition]:
        """Inputs that have not been read up to their last stable offset and can be read on."""

    def fail(self, error: BaseException) -> None:
        """A bug of the runtime's own: ends the stage."""


class Work:
    """What a lane does, from reading to finished unit; the defaults are those of work that ends at once."""

    keeps_deliveries = True
    """Work in progress outlives the loss of the producer; else everything unfinished is delivered again."""
    num_bytes = 0
    """Held by the inputs in work."""

    def resume(self, frontiers: Mapping[Partition, Frontier]) -> None:
        """After each take-over, with what is committed. Raises LostPlaceError."""

    async def run(self, reader: LaneReader) -> None:
        """Reads and finishes units until the lane reads no more."""
        raise NotImplementedError

    def held(self) -> Iterable[Spot]:
        """Inputs in work."""
        return ()

    def abandon(self, is_abandoned: Callable[[Spot], bool]) -> int:
        """Throws work away; the answer is its size."""
        return 0

    async def drain(self) -> None:
        """Until nothing is in work that ends by itself."""

    async def linger(self) -> None:
        """Leaves what is in work a moment to join the next transaction."""

    async def wait_abandoned(self) -> None:
        """Until what was thrown away has noticed."""


class DeliveryWork(Work, ABC):
    """Work that takes what is read, delivery by delivery."""

    max_poll: int
    """The most deliveries worth having at hand."""

    def __init__(self, lane: LaneView, stage: str) -> None:
        self._lane = lane
        self._stage = stage

    async def run(self, reader: LaneReader) -> None:
        wait_s = 0.0
        while await self._lane.opened():
            if await reader.fill(wait_s, self.max_poll):
                async with self.intake() as room:
                    for raw in reader.due(room if self._lane.is_open else 0):
                        if is_for_another(raw, self._stage):
                            self._lane.finish(Unit(inputs=(Spot(raw.at, raw.offset),), kind="late", source=raw))
                        else:
                            await self.take(raw)
            wait_s = self.tick()

    @abstractmethod
    def intake(self) -> AbstractAsyncContextManager[int]:
        """How many more deliveries it takes, as soon as it takes any; within the `with` they must be handed over."""

    @abstractmethod
    async def take(self, raw: RawRecord) -> None:
        """Begins the work on one delivery."""

    @abstractmethod
    def tick(self) -> float:
        """Does what is due by the clock; the answer is how long the lane may wait for records until the next call."""


class HandlerWork(DeliveryWork):
    """Each delivery runs its handler in a task of its own, at most `window` at a time."""

    def __init__(self, lane: LaneView, handle: Handle, context: StageContext) -> None:
        super().__init__(lane, context.stage.name)
        self.max_poll = context.limits.window
        self._handle = handle
        self._retry = context.retry
        self._limits = context.limits
        self._budget = context.budget
        self._tasks: dict[Spot, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.num_bytes = 0

    @asynccontextmanager
    async def intake(self) -> AsyncIterator[int]:
        """Also waits while the breaker is open: intake pauses then."""
        await self._retry.breaker.wait_closed()
        while (room := self._limits.window - self._num_held) <= 0:
            await self._budget.settled()
        async with self._budget.turn:
            yield min(room, await self._budget.portion(lambda: not self._num_held))
            await asyncio.sleep(0)  # handlers that end at once have ended then, and their outputs count

    @property
    def _num_held(self) -> int:
        return len(self._tasks) + len(self._lane.queue)

    async def take(self, raw: RawRecord) -> None:
        """Suspends nowhere: a lane that fails between two records of a poll would lose the second."""
        spot = Spot(raw.at, raw.offset)
        task = asyncio.create_task(self._run(spot, raw), name=f"{self._stage} {raw.ref}")
        self._tasks[spot] = task
        self.num_bytes += _weight(raw)
        task.add_done_callback(partial(self._end, raw))

    def tick(self) -> float:
        return self._limits.tick_s * 2

    def held(self) -> Iterable[Spot]:
        return list(self._tasks)

    def abandon(self, is_abandoned: Callable[[Spot], bool]) -> int:
        spots = [spot for spot in self._tasks if is_abandoned(spot)]
        for spot in spots:
            task = self._tasks.pop(spot)
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        return len(spots)

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def linger(self) -> None:
        if self._tasks and len(self._lane.queue) <= self._limits.window // 4:
            await asyncio.wait(list(self._tasks.values()), timeout=self._limits.linger_s)

    async def wait_abandoned(self) -> None:
        if self._ending:
            await asyncio.wait(list(self._ending))

    async def _run(self, spot: Spot, raw: RawRecord) -> None:
        unit = await self._retry.run(raw, self._handle)
        if self._tasks.get(spot) is asyncio.current_task():
            del self._tasks[spot]
            self._lane.finish(unit)

    def _end(self, raw: RawRecord, task: asyncio.Task[None]) -> None:
        self.num_bytes -= _weight(raw)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._lane.fail(error)


def _weight(raw: RawRecord) -> int:
    """Of a delivery in work: the record as it came, which a dead letter would need, and decoded."""
    return 2 * len(raw.value or b"")
