"""Replays a reducer: the gatherer.

In: the inputs of the plan, partition after partition, in each in the order of their broker times. Out: an answer for each group
that closes, always in the same order. Time is that of the records: before one is applied, everything that was due by then has
expired; at the end, what was due by the last record of the run. So no clock counts, and what was in flight has no answer.

Not promised: that a group which the stage closed late, since it had been down, is closed by the same records here.
"""

import heapq
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

import msgspec

from gagar.records import LogRef
from gagar.replay.answers import StageAnswer, plain
from gagar.replay.effects import Deliveries, Note, scan_partition
from gagar.replay.plan import ReplayPlan, Span
from gagar.replay.selection import Selection
from gagar.stream.handlers import Delivery, Reduced, Reducer
from gagar.stream.spec import Topic
from gagar.stream.transport import Transport


class OpenUnit(msgspec.Struct, kw_only=True):
    """A group that is not closed."""

    state: Any
    since: float
    """Broker time of its first input."""
    last: LogRef
    wake_at: float | None = None


class Units:
    """The groups of one partition number."""

    def __init__(self, reducer: Reducer[Any], selection: Selection, first: Topic, cut_at: float) -> None:
        """`cut_at`: inputs of earlier broker time are gone."""
        self._reducer = reducer
        self._selection = selection
        self._first = first.name
        self._cut_at = cut_at
        self._open: dict[str, OpenUnit] = {}
        self._timers: list[tuple[float, str]] = []

    def apply(self, delivery: Delivery[Any]) -> Iterator[StageAnswer]:
        """What an input closes, after all that was due before it."""
        yield from self.expire(delivery.at)
        unit = self._open.get(delivery.key) or self._begun(delivery)
        if unit is not None:
            unit.last = delivery.ref
            yield from self._settled(delivery.key, unit, self._reducer.apply(unit.state, delivery, delivery.at))

    def expire(self, now: float) -> Iterator[StageAnswer]:
        """What is due by `now`, what was due first at the front."""
        while self._timers and self._timers[0][0] <= now:
            wake_at, key = heapq.heappop(self._timers)
            unit = self._open.get(key)
            if unit is not None and unit.wake_at == wake_at:
                unit.wake_at = None
                yield from self._settled(key, unit, self._reducer.expire(unit.state, now), is_expired=True)

    def _begun(self, delivery: Delivery[Any]) -> OpenUnit | None:
        """The state of a group that a record of the first topic opens. Another record without an open group is late, or of one
        that is not selected."""
        if delivery.ref.topic != self._first or not self._selection.takes(delivery):
            return None
        state = self._reducer.start(delivery.key)
        unit = self._open[delivery.key] = OpenUnit(state=state, since=delivery.at, last=delivery.ref)
        return unit

    def _settled(self, key: str, unit: OpenUnit, reduced: Reduced, *, is_expired: bool = False) -> Iterator[StageAnswer]:
        if not reduced.is_closed:
            wake_at = self._reducer.wake_at(unit.state)
            if wake_at is not None and wake_at != unit.wake_at:
                heapq.heappush(self._timers, (wake_at, key))
            unit.wake_at = wake_at
            return
        del self._open[key]
        is_partial = is_expired and unit.since < self._cut_at
        yield StageAnswer(input=unit.last, key=key, outputs=plain(reduced.outputs), is_partial=is_partial)


class Head:
    """A scan whose next delivery can be looked at."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self.next: Delivery[Any] | None = None

    async def advance(self) -> None:
        self.next = await anext(self._deliveries, None)

    def time(self) -> float:
        """Of the next delivery, the end of time after the last; `min` takes the first topic's of equal ones."""
        return self.next.at if self.next is not None else math.inf


async def replay_reducer(
    transport: Transport, topics: tuple[Topic, ...], reducer: Reducer[Any], plan: ReplayPlan, *, num_done: int, note: Note
) -> AsyncGenerator[StageAnswer, None]:
    """See the module. `topics`: the stage's inputs; a group opens with a record of the first. `num_done`: answers that an
    earlier replay has given: they are made again, and left out."""
    num_before = 0
    for number in range(plan.num_partitions):
        spans = [plan.span(topic, number) for topic in topics]
        async with aclosing(_of_number(transport, topics, reducer, plan, number)) as steps:
            num_read = 0
            async for answer in steps:
                if answer is None:
                    num_read += 1
                    note(num_before + num_read)
                elif num_done:
                    num_done -= 1
                else:
                    yield answer
        num_before += sum(span.end - span.begin for span in spans)
        note(num_before)


async def _of_number(
    transport: Transport, topics: tuple[Topic, ...], reducer: Reducer[Any], plan: ReplayPlan, number: int
) -> AsyncGenerator[StageAnswer | None, None]:
    """The answers of a partition number; None for each record that was read."""
    async with AsyncExitStack() as stack:
        scans = [scan_partition(transport, topic, plan, number) for topic in topics]
        heads = [Head(await stack.enter_async_context(aclosing(scan))) for scan in scans]
        for head in heads:
            await head.advance()
        cut_at = _cut_at([plan.span(topic, number) for topic in topics], heads, plan.latest)
        units = Units(reducer, plan.selection, topics[0], cut_at)
        while (head := min(heads, key=Head.time)).next is not None:
            for answer in units.apply(head.next):
                yield answer
            yield None
            await head.advance()
        for answer in units.expire(plan.latest):
            yield answer


def _cut_at(spans: Sequence[Span], heads: Sequence[Head], latest: float) -> float:
    """Broker time of the first record left of an input whose beginning is gone; the latest of them. 0 if none is gone."""
    cuts = [min(head.time(), latest + 1) for span, head in zip(spans, heads, strict=True) if span.begin]
    return max(cuts, default=0.0)
