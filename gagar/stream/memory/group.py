"""Consumer groups of the in-memory transport: divided anew, eagerly and stickily, when a member comes or goes."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gagar.stream.lanes.frontier import AT_START
from gagar.stream.transport import Committed, Owner, Partition


class Process(Protocol):
    """The transport that a member belongs to."""

    is_dead: bool
    member: str
    """Its name, if it has one: then its place outlives it."""


class MemoryGroup:
    """A group: its members in the order in which they came, and the offsets that were committed to it."""

    def __init__(self) -> None:
        self.offsets: dict[Partition, Committed] = {}
        self.members: list[MemoryMembership] = []
        self.generation = 0
        self._turn = asyncio.Lock()
        self._rebalances: set[asyncio.Task[None]] = set()

    def add(self, member: "MemoryMembership") -> None:
        """A member comes; one with a name takes its place again."""
        place = next((other for other in self.members if member.process.member and other.is_away_for(member.process)), None)
        if place is None:
            self.members.append(member)
            return self._schedule()
        self.members[self.members.index(place)] = member
        member.numbers = place.numbers
        if self._turn.locked():
            return self._schedule()
        member.is_settled = True
        return member.owner.on_assigned(member.numbers)

    def remove(self, process: Process) -> None:
        """A process's member goes, if it has one here; the place of one with a name stays until `expire`."""
        for member in [member for member in self.members if member.process is process]:
            member.is_away = True
            if not process.member:
                self.members.remove(member)
                self._schedule()

    def expire(self) -> None:
        """Whoever is away has not come back in time."""
        self.members = [member for member in self.members if not member.is_away]
        self._schedule()

    def _schedule(self) -> None:
        task = asyncio.get_running_loop().create_task(self._rebalance())
        self._rebalances.add(task)
        task.add_done_callback(self._rebalances.discard)

    async def _rebalance(self) -> None:
        async with self._turn:
            members = list(self.members)
            for member in members:
                member.is_settled = False
            await asyncio.gather(*(member.owner.on_revoked() for member in members if not member.is_away))
            self.generation += 1
            for member, numbers in zip(members, _divide(members), strict=True):
                if member in self.members:
                    member.numbers = numbers
                    member.is_settled = True
                    if not member.is_away:
                        member.owner.on_assigned(numbers)


def _divide(members: Sequence["MemoryMembership"]) -> list[frozenset[int]]:
    """Each keeps what it had, up to its share; the rest goes to those below theirs."""
    if not members:
        return []
    num_partitions = members[0].num_partitions
    least, num_more = divmod(num_partitions, len(members))
    shares = [least + (i < num_more) for i in range(len(members))]
    kept = [sorted(member.numbers)[:share] for member, share in zip(members, shares, strict=True)]
    free = sorted(set(range(num_partitions)) - {number for numbers in kept for number in numbers})
    return [
        frozenset(numbers + [free.pop(0) for _ in range(share - len(numbers))])
        for numbers, share in zip(kept, shares, strict=True)
    ]


class MemoryMembership:
    """`gagar.stream.transport.Membership`."""

    def __init__(self, process: Process, group: MemoryGroup, num_partitions: int, owner: Owner) -> None:
        self.process = process
        self.owner = owner
        self.num_partitions = num_partitions
        self.numbers: frozenset[int] = frozenset()
        self.is_settled = self.is_away = False
        self._group = group

    @property
    def is_held(self) -> bool:
        return self.is_settled and self in self._group.members

    def is_away_for(self, process: Process) -> bool:
        """Whether it has left a place that a process of the same name takes."""
        return self.is_away and self.process.member == process.member

    async def run(self) -> None:
        self._group.add(self)
        await asyncio.Event().wait()

    async def confirm(self) -> frozenset[int]:
        while True:
            await asyncio.sleep(0)
            if self.is_settled and self in self._group.members:
                return self.numbers
            await asyncio.sleep(0.005)

    async def committed(self, partitions: Sequence[Partition], /) -> dict[Partition, Committed]:
        await asyncio.sleep(0)
        found = {at: self._group.offsets.get(at, Committed(offset=0, metadata=AT_START)) for at in partitions}
        await asyncio.sleep(0)
        return found

    async def close(self) -> None:
        self._group.remove(self.process)
