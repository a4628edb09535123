"""A stopped stage's positions, moved: what would change in each partition, and the commit that changes it.

In: where the stage's group stands, where it is to go. Out: `Move`s; offsets with the metadata that lanes require. The commit
goes the way of the stage's own lanes: a producer of each lane's transactional id fences whoever still bears it and settles what
a killed process has left open, and the group's offsets are read after that. Not promised: that anything downstream bears it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from gagar.errors import ConfigError, FencedError, GagarError, UnavailableError
from gagar.stream.lanes.frontier import AT_START, Frontier
from gagar.stream.spec import Stage, Topic
from gagar.stream.transport import Committed, Partition, Transport

Positions = Mapping[Partition, Committed]
"""Where a consumer group stands."""


class Move(NamedTuple):
    """One partition of a stage that goes elsewhere."""

    at: Partition
    before: Committed | None
    """None: the log knows of no offset; it was lost."""
    after: Committed

    @property
    def num_again(self) -> int:
        """Offsets that are due again: at most so many records. 0 if it is not known where the group stood."""
        if self.before is None:
            return 0
        begin, low = self.after.offset, self.before.offset
        return max(0, low - begin) + sum(offset >= begin for offset in finished_beyond(self.before))

    @property
    def num_skipped(self) -> int:
        """Offsets that are never done: at most so many records."""
        if self.before is None:
            return 0
        begin, low = self.before.offset, self.after.offset
        return max(0, low - begin - sum(offset < low for offset in finished_beyond(self.before)))


def finished_beyond(committed: Committed) -> list[int]:
    """Finished offsets beyond the committed one; none if it was set by hand, with metadata that say nothing."""
    try:
        return Frontier.restore(committed.offset, committed.metadata).finished_beyond()
    except GagarError:
        return []


def move(at: Partition, before: Committed | None, to: int) -> Move | None:
    """The move of one partition to an offset; none if it stands there already. What is finished beyond where it goes is due
    again if that lies behind, and stays finished if it lies ahead."""
    if before is not None and to == before.offset and before.metadata:
        return None
    kept = finished_beyond(before) if before is not None and to > before.offset else []
    offset, metadata = Frontier(to, [offset for offset in kept if offset >= to]).snapshot() if kept else (to, AT_START)
    return Move(at, before, Committed(offset=offset, metadata=metadata))


def moves(before: Positions, targets: Mapping[Partition, int], ranges: Mapping[Partition, tuple[int, int]]) -> list[Move]:
    """The moves to the targets, by partition. `ranges`: first offset and end of each. Raises ConfigError for a partition that
    is none of the stage's, and for an offset that its log does not hold."""
    for at, to in targets.items():
        if at not in ranges:
            raise ConfigError(f"--to {at}@{to}: expected one of {', '.join(map(str, sorted(ranges)))}, got {at}")
        begin, end = ranges[at]
        if not begin <= to <= end:
            raise ConfigError(f"--to {at}@{to}: expected an offset from {begin} to {end}, got {to}")
    found = (move(at, before.get(at), to) for at, to in sorted(targets.items()))
    return [one for one in found if one is not None]


async def commit_moves(
    transport: Transport, stage: Stage, dead_letters: Topic, planned: Sequence[Move], read: Callable[[], Awaitable[Positions]]
) -> None:
    """Moves the stage. `read`: the group's offsets, asked for now. Raises UnavailableError if they are others than in the plan,
    and FencedError if the stage has been started meanwhile; what was moved by then stays so."""
    names = {one.at.number: f"{stage.name}.{one.at.number}" for one in planned}
    producers = {}
    try:
        for number, name in names.items():
            producers[number] = await transport.start_producer(name, (*stage.outputs, dead_letters))
        _check_plan(stage, planned, await read())
        for number, producer in producers.items():
            await producer.begin()
            await producer.commit(stage.name, {one.at: one.after for one in planned if one.at.number == number})
    except FencedError as error:
        raise FencedError(
            f"stage {stage.name}: expected it to stay stopped, got it started meanwhile; stop it, plan anew"
        ) from error
    finally:
        for producer in producers.values():
            await producer.close()


def _check_plan(stage: Stage, planned: Sequence[Move], now: Positions) -> None:
    for one in planned:
        if now.get(one.at) != one.before:
            got = now[one.at].offset if one.at in now else "none"
            expected = f"expected {one.at} at {one.before.offset if one.before else 'no offset'}, as in the plan"
            raise UnavailableError(f"stage {stage.name}: {expected}, got {got}; it has gone on meanwhile: plan anew")
