"""The unit of work: input offsets and the outputs that they caused, committed together; and the queue of finished ones."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from gagar.records import LogRef, Record
from gagar.stream.together import bounded
from gagar.stream.transport import Partition, RawRecord, Send


class Spot(NamedTuple):
    """Where an input lies."""

    at: Partition
    offset: int


class LinkedSend(msgspec.Struct, frozen=True, kw_only=True):
    """A first record, encoded, and what makes the second one from where the first came to lie."""

    first: Send
    then: Callable[[LogRef], Record]


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and outputs that become finished and visible in one transaction."""

    inputs: tuple[Spot, ...]
    outputs: Sequence[Send | LinkedSend] = ()
    kind: Literal["done", "late", "dead", "made"] = "done"
    """made: by a source, which has no input that could be dead-lettered."""
    source: RawRecord
    """The input that brought the unit about: what is dead-lettered if the log refuses an output."""

    @property
    def num_bytes(self) -> int:
        """Of the outputs that are encoded already."""
        sends = (output.first if isinstance(output, LinkedSend) else output for output in self.outputs)
        return sum(len(send.value or b"") for send in sends)

    @property
    def input_bytes(self) -> int:
        """Of the record that a dead letter would need."""
        return len(self.source.value or b"")


class UnitQueue:
    """Finished units in the order in which they finished; those of a failed transaction come back to the front.

    A transaction may have failed because it was too large for its time: the next one takes half as many units, and twice as
    many again after each that was committed.
    """

    def __init__(self) -> None:
        self.on_settled: Callable[[], None] = lambda: None
        """Called when units have left the queue or come back to it."""
        self.input_bytes = self.output_bytes = 0
        """Held by all units."""
        self._units: deque[Unit] = deque()
        self._taken: list[Unit] = []
        self._portion = math.inf
        """Most units of the next transaction; a float, which doubles up to infinity and does not grow beyond."""
        self._spots: set[Spot] = set()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._settled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._units) + len(self._taken)

    def __contains__(self, spot: Spot) -> bool:
        """Whether the unit of an input is finished and not yet committed."""
        return spot in self._spots

    def put(self, unit: Unit) -> None:
        """Adds a finished unit."""
        self._units.append(unit)
        self._weigh(unit, 1)
        self._spots.update(unit.inputs)
        self._filled.set()
        self._emptied.clear()

    @property
    def is_down_to_one(self) -> bool:
        """The next transaction takes one unit, since larger ones have failed: all that may help it is more time."""
        return self._portion == 1

    def take(self, max_units: int, max_bytes: int) -> list[Unit]:
        """The first units, for one transaction: at least one if there is any. `done` or `give_back` must follow."""
        assert not self._taken
        num_bytes, limit = 0, min(max_units, self._portion)
        while self._units and len(self._taken) < limit and (not self._taken or num_bytes < max_bytes):
            unit = self._units.popleft()
            num_bytes += unit.num_bytes
            self._taken.append(unit)
        return list(self._taken)

    def done(self) -> None:
        """The units taken are committed."""
        self._portion *= 2
        for unit in self._taken:
            self._spots.difference_update(unit.inputs)
            self._weigh(unit, -1)
        self._taken = []
        self._settle()

    def give_back(self, replace: Callable[[Unit], Unit] | None = None) -> None:
        """The transaction failed: the units taken wait for others. `replace`: one of them was at fault, not their number."""
        if replace is None:
            self._portion = float(max(1, len(self._taken) // 2))
        self._units.extendleft(replace(unit) if replace else unit for unit in reversed(self._taken))
        self._taken = []
        self._weigh_all()
        self._settle()

    def drop(self, is_dropped: Callable[[Unit], bool]) -> int:
        """Removes units that are waiting; the answer is their number."""
        kept = [unit for unit in self._units if not is_dropped(unit)]
        num_dropped = len(self._units) - len(kept)
        self._units = deque(kept)
        self._spots = {spot for unit in kept for spot in unit.inputs}
        self._weigh_all()
        self._settle()
        return num_dropped

    def spots(self) -> Iterable[Spot]:
        """Inputs of all units."""
        return self._spots

    async def wait_filled(self, timeout_s: float) -> None:
        """Until there is a unit to take, or for `timeout_s`."""
        if not self._units:
            await bounded(self._filled.wait(), timeout_s)

    async def wait_empty(self) -> None:
        """Until all units are committed."""
        await self._emptied.wait()

    async def wait_present(self) -> None:
        """Until the units that are here now are committed, whatever comes meanwhile."""
        present = set(self._spots)
        while not present.isdisjoint(self._spots):
            self._settled.clear()
            await self._settled.wait()

    def _weigh(self, unit: Unit, sign: int) -> None:
        self.input_bytes += sign * unit.input_bytes
        self.output_bytes += sign * unit.num_bytes

    def _weigh_all(self) -> None:
        self.input_bytes = self.output_bytes = 0
        for unit in self._units:
            self._weigh(unit, 1)

    def _settle(self) -> None:
        if self._units:
            self._filled.set()
        else:
            self._filled.clear()
        if len(self):
            self._emptied.clear()
        else:
            self._emptied.set()
        self._settled.set()
        self.on_settled()
