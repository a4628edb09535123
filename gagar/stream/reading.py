"""Reads the partitions of a lane into its frontiers: skips what is finished, holds back what a span has no room for.

In: a transport's reader. Out: records due for work. Reported, never silent: offsets that the log no longer holds.
"""

import logging
import time
from collections import deque

from gagar.errors import GagarError, UnavailableError
from gagar.stream.frontier import Frontier
from gagar.stream.policy import Policy
from gagar.stream.transport import OutOfRangeError, Partition, RawRecord, Reader

log = logging.getLogger(__name__)


class LaneReader:
    """One incarnation of a lane's reading: from a take-over to the next."""

    def __init__(self, lane: str, reader: Reader, policy: Policy) -> None:
        self._lane = lane
        self._reader = reader
        self._policy = policy
        self._frontiers: dict[Partition, Frontier] = {}
        self._held_back: dict[Partition, deque[RawRecord]] = {}
        self._silent_s = 0.0

    async def seek(self, at: Partition, offset: int | None) -> int:
        """Where reading would begin: `offset`, or the earliest there is."""
        await self._reader.seek(at, offset)
        return self._reader.position(at)

    async def start(self, at: Partition, frontier: Frontier) -> None:
        """Reading begins after what the frontier knows as delivered."""
        if self._reader.position(at) != frontier.next:
            await self._reader.seek(at, frontier.next)
        self._frontiers[at] = frontier
        self._held_back[at] = deque()

    def lagging(self) -> list[Partition]:
        """Partitions not read up to their ends, but for those held back."""
        return [at for at, held in self._held_back.items() if not held and not self._reader.is_caught_up(at)]

    async def poll(self, wait_s: float, max_records: int) -> list[RawRecord]:
        """The next records due, within `wait_s`."""
        due: list[RawRecord] = []
        for at in self._held_back:
            self._release(at, due, max_records)
        if not due:  # what has been delivered to a frontier must not be lost in a failing fetch
            started = time.monotonic()
            await self._fetch(wait_s, due, max_records)
            self._check_silence(time.monotonic() - started, due)
        return due

    async def close(self) -> None:
        await self._reader.close()

    async def _fetch(self, wait_s: float, due: list[RawRecord], max_records: int) -> None:
        try:
            records = await self._reader.poll(wait_s, max_records)
        except OutOfRangeError as error:
            await self._skip_missing(error)
            return
        for raw in records:
            if self._held_back[raw.at] or not self._deliver(raw, due):
                self._held_back[raw.at].append(raw)
                self._reader.pause(raw.at)
        for at, frontier in self._frontiers.items():
            if not self._held_back[at]:
                frontier.advance(self._reader.position(at))

    def _deliver(self, raw: RawRecord, due: list[RawRecord]) -> bool:
        """False: the span has no room."""
        frontier = self._frontiers[raw.at]
        if not frontier.has_room(raw.offset):
            return False
        if frontier.deliver(raw.offset):
            due.append(raw)
        return True

    def _release(self, at: Partition, due: list[RawRecord], max_records: int) -> None:
        held = self._held_back[at]
        if not held:
            return
        while held and len(due) < max_records and self._deliver(held[0], due):
            held.popleft()
        if not held:
            self._reader.resume(at)

    async def _skip_missing(self, error: OutOfRangeError) -> None:
        """Retention has overtaken the group: what is missing is reported, and reading goes on at what there is."""
        at, frontier = error.at, self._frontiers[error.at]
        if error.offset > error.end:
            raise GagarError(
                f"{self._lane}: expected {at} to reach offset {error.offset}, got an end at {error.end}: the topic was cut or "
                "made anew; use another run.name, or reset the offsets of the group"
            )
        log.error(
            "records lost before they were read lane=%s partition=%s from=%d to=%d; raise the topic's retention",
            self._lane,
            at,
            error.offset,
            error.earliest - 1,
        )
        frontier.advance(error.earliest)
        await self._reader.seek(at, error.earliest)

    def _check_silence(self, waited_s: float, due: list[RawRecord]) -> None:
        """The watchdog of a reader that died without a word."""
        self._silent_s = self._silent_s + waited_s if not due and self.lagging() else 0.0
        if self._silent_s > self._policy.silence_s:
            raise UnavailableError(f"{self._lane}: expected an answer within {self._policy.silence_s:g} s, got none")
