"""Reads the partitions of a lane into its frontiers: skips what is finished, holds back what there is no room for.

In: a watched reader. Out: records due for work. Reported and counted, never silent: offsets that the log no longer holds.
Of a topic whose records stand for whole groups none may be missing: that ends the stage.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping

from gagar.errors import GagarError
from gagar.stream.lanes.frontier import Frontier
from gagar.stream.limits import Counters
from gagar.stream.readers.watched import WatchedReader
from gagar.stream.spec import Topic
from gagar.stream.transport import OutOfRangeError, Partition, RawRecord

log = logging.getLogger(__name__)


def report_missing(reader: str, topic: Topic, error: OutOfRangeError, num_missing: int) -> int:
    """Tells of offsets that were due and are gone; the answer is their number. Raises GagarError if each may be a group that
    now could never end."""
    if num_missing and topic.kept == "with the run":
        raise GagarError(
            f"{reader}: expected {error.at} to hold offsets {error.offset} to {error.earliest - 1}, got a log that begins at "
            f"{error.earliest}: records were deleted, and groups that they stand for can never end; "
            "see `gagar topics check` with the --run and --set of this stage, then start anew under another run.name"
        )
    if num_missing:
        log.error(
            "records lost before they were read reader=%s partition=%s from=%d to=%d count=%d; raise the topic's retention",
            reader,
            error.at,
            error.offset,
            error.earliest - 1,
            num_missing,
        )
    return num_missing


class LaneReader:
    """One incarnation of a lane's reading: from a take-over to the next. Begins after what the frontiers know as delivered."""

    def __init__(
        self,
        lane: str,
        reader: WatchedReader,
        topics: Iterable[Topic],
        frontiers: Mapping[Partition, Frontier],
        counters: Counters,
    ) -> None:
        self._lane = lane
        self._reader = reader
        self._topics = {topic.name: topic for topic in topics}
        self._counters = counters
        self._frontiers = frontiers
        self._held_back: dict[Partition, deque[RawRecord]] = {at: deque() for at in frontiers}
        reader.positions = {at: frontier.next for at, frontier in frontiers.items()}

    def lagging(self) -> list[Partition]:
        """Partitions not read up to their ends, but for those whose span has no room."""
        return [*self._reader.behind(), *(at for at in self._held_back if self._is_due(at))]

    @property
    def polled_at(self) -> float | None:
        """When the last poll ended, by the monotonic clock; none before the first."""
        return self._reader.polled_at

    @property
    def silent_s(self) -> float:
        """Seconds without an answer from the log, though there is more to read."""
        return self._reader.silent_s

    def lag(self) -> int | None:
        """Records up to the ends that are not finished; none if no end is known."""
        ends = {at: end for at in self._frontiers if (end := self._reader.end(at)) is not None}
        return sum(max(0, end - self._frontiers[at].low) for at, end in ends.items()) if ends else None

    async def fill(self, wait_s: float, max_records: int) -> bool:
        """Whether records are due, after at most `wait_s`. They stay here until `due` is asked for them."""
        if not any(self._is_due(at) for at in self._held_back):
            await self._fetch(wait_s, max_records)
        return any(self._is_due(at) for at in self._held_back)

    def due(self, max_records: int) -> list[RawRecord]:
        """The next records due; they count as delivered."""
        due: list[RawRecord] = []
        for at in self._held_back:
            self._release(at, due, max_records)
        self._counters.delivered += len(due)
        return due

    async def close(self) -> None:
        await self._reader.close()

    async def _fetch(self, wait_s: float, max_records: int) -> None:
        try:
            records = await self._reader.poll(wait_s, max_records)
        except OutOfRangeError as error:
            return await self._skip_missing(error)
        for raw in records:
            self._held_back[raw.at].append(raw)
        for at, frontier in self._frontiers.items():
            if not self._held_back[at]:
                frontier.advance(self._reader.position(at))
            elif not self._is_due(at):
                self._reader.pause(at)
        return None

    def _is_due(self, at: Partition) -> bool:
        held = self._held_back[at]
        return bool(held) and self._frontiers[at].has_room(held[0].offset)

    def _release(self, at: Partition, due: list[RawRecord], max_records: int) -> None:
        """What stays behind stops the fetching."""
        held, frontier = self._held_back[at], self._frontiers[at]
        if not held:
            return
        while len(due) < max_records and self._is_due(at):
            raw = held.popleft()
            if frontier.deliver(raw.offset):
                due.append(raw)
        if held:
            self._reader.pause(at)
        else:
            frontier.advance(self._reader.position(at))
            self._reader.resume(at)

    async def _skip_missing(self, error: OutOfRangeError) -> None:
        """What is missing is reported, and reading goes on at what there is, if that can be borne."""
        at, frontier = error.at, self._frontiers[error.at]
        if error.offset > error.end:
            raise GagarError(
                f"{self._lane}: expected {at} to reach offset {error.offset}, got an end at {error.end}: the topic was cut or "
                "made anew; use another run.name"
            )
        num_missing = sum(not frontier.is_finished(offset) for offset in range(error.offset, error.earliest))
        self._counters.missing += report_missing(self._lane, self._topics[at.topic], error, num_missing)
        frontier.advance(error.earliest)
        await self._reader.seek(at, error.earliest)
