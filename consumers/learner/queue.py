"""The groups that wait to be trained, in order, and what is finished of the input. Pure: no time of its own, no I/O.

Order: groups of an abandoned future first, by the step that trained them there (so that the same batches come again); then
oldest policy version, broker time, place in the log. A group that would be too stale at the step that is to train it is
dropped.

A group is taken once: a second record of it, which only a fault elsewhere can bring, is passed over and told.

Positions: per partition the low watermark (the first offset that is not finished) and the finished offsets beyond it. Read
from the low watermarks and skip what is finished, and every unfinished group is there again and no finished one.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from consumers.learner.plan import oldest_version, trainable
from gagar.records import DropReason, GroupAdvantages, LogRef
from gagar.stream.handlers import Delivery
from gagar.stream.lanes.frontier import Frontier

logger = logging.getLogger(__name__)


class Waiting(NamedTuple):
    """One group that has been read and is not finished."""

    ref: LogRef
    at: float
    group: GroupAdvantages


class Dropped(NamedTuple):
    """One group that will not be trained."""

    waiting: Waiting
    reason: DropReason


class FinishedOffsets:
    """What is finished of the input: a frontier for each partition. It lives in checkpoints, so its span needs no bound."""

    def __init__(self, positions: Mapping[int, int], finished: Mapping[int, Sequence[int]]) -> None:
        self._frontiers = {
            partition: Frontier(low, finished.get(partition, ()), is_bounded=False) for partition, low in positions.items()
        }

    def read(self, ref: LogRef) -> bool:
        """The record at `ref` has been read; whether it is unfinished."""
        return self._frontiers.setdefault(ref.partition, Frontier(is_bounded=False)).deliver(ref.offset)

    def finish(self, ref: LogRef) -> None:
        """The group of the record at `ref` has ended."""
        self._frontiers[ref.partition].finish([ref.offset])

    def positions(self) -> dict[int, int]:
        """The low watermarks."""
        return {partition: frontier.low for partition, frontier in self._frontiers.items()}

    def finished(self) -> dict[int, list[int]]:
        """Finished offsets beyond the low watermarks."""
        found = {partition: frontier.finished_beyond() for partition, frontier in self._frontiers.items()}
        return {partition: offsets for partition, offsets in found.items() if offsets}


class GroupQueue:
    """Waiting groups. `replay`: group_id -> step, of the abandoned future. `ended`: groups that have an outcome that counts."""

    def __init__(self, progress: FinishedOffsets, replay: Mapping[str, int] | None = None, ended: Iterable[str] = ()) -> None:
        self.progress = progress
        self._met = set(ended)
        self._replay = dict(replay or {})
        self._missing = set(self._replay)
        self._waiting: list[Waiting] = []

    def add(self, deliveries: Sequence[Delivery[Any]]) -> None:
        """Takes what was read; what is finished already is passed over."""
        for delivery in deliveries:
            group_id = delivery.record.group_id
            self._missing.discard(group_id)
            if not self.progress.read(delivery.ref):
                continue
            if group_id in self._met:
                logger.warning("group met twice, second record passed over group=%s record=%s", group_id, delivery.ref)
                self.progress.finish(delivery.ref)
                continue
            self._met.add(group_id)
            self._waiting.append(Waiting(delivery.ref, delivery.at, delivery.record))
        if deliveries:
            self._waiting.sort(key=self._order)

    @property
    def num_missing(self) -> int:
        """Groups of the abandoned future that have not been read again yet."""
        return len(self._missing)

    def drop_hopeless(self, version: int, max_staleness: int) -> list[Dropped]:
        """Takes out what no step from `version` on can train."""
        dropped = []
        for waiting in self._waiting:
            if not trainable(waiting.group):
                dropped.append(Dropped(waiting, "untrainable"))
            elif version - oldest_version(waiting.group) > max_staleness:
                dropped.append(Dropped(waiting, "stale"))
        gone = {drop.waiting.ref for drop in dropped}
        self._waiting = [waiting for waiting in self._waiting if waiting.ref not in gone]
        return dropped

    def take(self, version: int, max_staleness: int) -> Waiting | Dropped | None:
        """The next group for a step that trains from `version`, or one that is too stale for it; none if none waits."""
        if not self._waiting:
            return None
        waiting = self._waiting.pop(0)
        is_stale = version - oldest_version(waiting.group) > max_staleness
        return Dropped(waiting, "stale") if is_stale else waiting

    def take_all(self) -> list[Waiting]:
        """Everything that waits."""
        everything, self._waiting = self._waiting, []
        return everything

    def _order(self, waiting: Waiting) -> tuple[float, int, float, int, int]:
        group = waiting.group
        step = self._replay.get(group.group_id, float("inf"))
        return step, oldest_version(group), waiting.at, waiting.ref.partition, waiting.ref.offset
