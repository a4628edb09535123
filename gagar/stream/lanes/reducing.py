"""Keyed state over the inputs of a lane: the work of a reducer.

In: deliveries of all inputs, in any interleaving. Out: units that hold all inputs of a key. Kept: the state of open keys, in
memory only; after a crash or a lost producer the unfinished inputs are delivered again and it is built anew.

Stream time: the log's time once all inputs are read up to their last stable offsets, else the time of the last record read
from the input that lags most; it never goes back, unless what is unfinished is read again. An input whose span is full
cannot be read on and is left out: only the clock can close what fills it. Groups whose records retention has taken away end
by their deadline, as far as any of their requests is still there.
"""

import heapq
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gagar.errors import BadRecordError, GagarError
from gagar.records import LogRef
from gagar.stream.guard import HandlerBugError, guarded
from gagar.stream.handlers import Delivery, Reduced, Reducer
from gagar.stream.lanes.context import StageContext
from gagar.stream.lanes.units import Spot, Unit
from gagar.stream.lanes.work import DeliveryWork, LaneView
from gagar.stream.transport import Partition, RawRecord

log = logging.getLogger(__name__)

POLL_RECORDS = 64
MAX_QUEUE = 64
"""Closed units that wait for their commit before reading stops: a transaction, while another is under way."""


class OpenKey(msgspec.Struct, kw_only=True):
    """A key whose unit is not closed."""

    state: Any
    spots: list[Spot]
    source: RawRecord
    """The last input, without its value: it lies in the log, and a backlog holds many keys open."""
    wake_at: float | None = None


class StreamTime:
    """See the module."""

    def __init__(self, log_time: Callable[[], float]) -> None:
        self._log_time = log_time
        self._last_read: dict[Partition, float] = {}
        self._now = 0.0

    def note(self, raw: RawRecord) -> None:
        """A record was read."""
        self._last_read[raw.at] = raw.time

    def begin_again(self) -> None:
        """All that is unfinished will be read again, and is judged by its own time again: else what had closed in time and was
        not committed would expire before its last record is back."""
        self._last_read.clear()
        self._now = 0.0

    def now(self, lagging: Iterable[Partition]) -> float:
        """Stream time, given the inputs that are not read up to their ends."""
        times = [self._last_read.get(at, 0.0) for at in lagging]
        self._now = max(self._now, min([self._log_time(), *times]))
        return self._now


class ReducerWork(DeliveryWork):
    """The work of one lane of a reducer."""

    keeps_deliveries = False
    max_poll = POLL_RECORDS

    def __init__(self, lane: LaneView, reducer: Reducer[Any], context: StageContext, clock: StreamTime) -> None:
        super().__init__(lane, context.stage.name)
        self._reducer = reducer
        self._retry = context.retry
        self._router = context.router
        self._limits = context.limits
        self._budget = context.budget
        self._clock = clock
        self._open: dict[str, OpenKey] = {}
        self._timers: list[tuple[float, str]] = []
        self.num_bytes = 0
        """State is what it is: to hold back the records that close keys would not make it smaller."""

    @asynccontextmanager
    async def intake(self) -> AsyncIterator[int]:
        while len(self._lane.queue) >= MAX_QUEUE or (len(self._lane.queue) and self._budget.is_spent):
            await self._budget.settled()
        yield POLL_RECORDS

    async def take(self, raw: RawRecord) -> None:
        """Applies one delivery to the state of its key."""
        self._clock.note(raw)
        try:
            self._apply(raw, await self._retry.decode(raw))
        except (BadRecordError, HandlerBugError) as error:
            self._lane.finish(self._retry.dead(raw, error))

    def tick(self) -> float:
        """Expires what is due; a key's unit closes by its last delivery or here."""
        now = self._clock.now(self._lane.lagging())
        while self._timers and self._timers[0][0] <= now:
            wake_at, key = heapq.heappop(self._timers)
            entry = self._open.get(key)
            if entry is not None and entry.wake_at == wake_at:
                entry.wake_at = None
                self._expire(key, entry, now)
        until_next = self._timers[0][0] - now if self._timers else self._limits.tick_s
        return min(self._limits.tick_s, max(0.005, until_next))

    def held(self) -> Iterable[Spot]:
        return [spot for entry in self._open.values() for spot in entry.spots]

    def abandon(self, is_abandoned: Callable[[Spot], bool]) -> int:
        """State is cheap and whole or useless: all of it goes."""
        num_spots = sum(len(entry.spots) for entry in self._open.values())
        self._open.clear()
        self._timers.clear()
        self._clock.begin_again()
        return num_spots

    def _apply(self, raw: RawRecord, delivery: Delivery[Any]) -> None:
        key, spot = delivery.key, Spot(raw.at, raw.offset)
        entry = self._open.get(key)
        with guarded():
            if entry is None and self._reducer.is_late(delivery, self._is_finished):
                return self._finish_late(raw, spot)
            state = self._reducer.start(key) if entry is None else entry.state
            now = self._clock.now([*self._lane.lagging(), raw.at])  # what was read with it may not have been applied yet
            reduced = self._reducer.apply(state, delivery, now)
        if entry is None:
            entry = self._open[key] = OpenKey(state=state, spots=[], source=raw)
        entry.spots.append(spot)
        entry.source = raw if reduced.is_closed else _without_value(raw)
        self._settle(key, entry, reduced)
        return None

    def _expire(self, key: str, entry: OpenKey, now: float) -> None:
        try:
            with guarded():
                reduced = self._reducer.expire(entry.state, now)
            self._settle(key, entry, reduced)
        except (BadRecordError, HandlerBugError) as error:
            log.error("key cannot expire stage=%s key=%s error=%s", self._stage, key, error)
            del self._open[key]
            unit = self._router.dead_unit(entry.source, str(error), inputs=tuple(entry.spots), ends_group=True)
            self._lane.finish(unit)

    def _settle(self, key: str, entry: OpenKey, reduced: Reduced) -> None:
        if reduced.is_closed:
            del self._open[key]
            self._lane.finish(self._closed(entry, reduced))
            return
        if reduced.outputs:
            raise GagarError(f"reducer of {self._stage}: expected outputs of a closed key only, got some of open key {key!r}")
        with guarded():
            wake_at = self._reducer.wake_at(entry.state)
        if wake_at is not None and wake_at != entry.wake_at:
            heapq.heappush(self._timers, (wake_at, key))
        entry.wake_at = wake_at

    def _closed(self, entry: OpenKey, reduced: Reduced) -> Unit:
        """All inputs of a key and its outputs; if these cannot be written, all inputs are dead together."""
        inputs = tuple(entry.spots)
        try:
            return Unit(inputs=inputs, outputs=self._router.encode_all(reduced.outputs), source=entry.source)
        except BadRecordError as error:
            return self._router.dead_unit(entry.source, str(error), inputs=inputs, ends_group=True)

    def _finish_late(self, raw: RawRecord, spot: Spot) -> None:
        log.warning("late record dropped stage=%s record=%s key=%s", self._stage, raw.ref, raw.key.decode("utf-8", "replace"))
        self._lane.finish(Unit(inputs=(spot,), kind="late", source=raw))

    def _is_finished(self, ref: LogRef) -> bool:
        return self._lane.is_finished(Spot(Partition(ref.topic, ref.partition), ref.offset))


def _without_value(raw: RawRecord) -> RawRecord:
    return RawRecord(at=raw.at, offset=raw.offset, key=raw.key, value=None, time=raw.time)
