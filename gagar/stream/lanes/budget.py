"""How much a process of a stage holds in bytes: inputs in work, and encoded outputs that wait for their commit.

Shared by all lanes of the process, since memory is. Two bounds, since they cost differently: few inputs in work starve nobody
whose handlers are quick, while small transactions cost the broker and all later stages dearly. So outputs are made in portions
of half the bound, one lane after the other: while one lane's portion is committed, the next one's is made. What a handler will
have made cannot be known before it ends; a portion goes by what units weighed of late. A lane that holds nothing gets one
delivery in the end, whatever others hold: the largest record passes, and a partition out of reach stops no other.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from gagar.stream.together import bounded

FORGET = 0.9
"""A heavy unit counts a tenth less with each lighter one after it."""


class Held(NamedTuple):
    """Bytes."""

    inputs: float
    outputs: float


MAX_WAIT_S = 1.0
"""How long a lane keeps its turn while others do not get rid of what they hold."""
LEAST = Held(1 << 10, 1 << 10)
FIRST_GUESS = Held(1 << 20, 1 << 20)


class Holder(Protocol):
    """A lane, seen as what it holds."""

    @property
    def held(self) -> Held: ...


class Budget:
    """See the module."""

    def __init__(self, limits: Held, holders: Mapping[int, Holder]) -> None:
        self.changed = asyncio.Event()
        """Set whenever a lane has settled units: all that wait for room look again."""
        self.turn = asyncio.Lock()
        """Lanes take their portions one after the other, in the order in which they asked."""
        self._limits = limits
        self._holders = holders
        self._unit = FIRST_GUESS

    @property
    def is_spent(self) -> bool:
        """Whether more is held than should be."""
        return min(self._free()) <= 0

    async def portion(self, is_idle: Callable[[], bool]) -> int:
        """Deliveries that a lane may take, as soon as it may take any; called within `turn`. None after MAX_WAIT_S, when the
        turn must go on, but one for a lane that holds nothing (`is_idle`)."""
        deadline = time.monotonic() + MAX_WAIT_S
        while (portion := self._portion(is_idle())) <= 0 and (left_s := deadline - time.monotonic()) > 0:
            await self.settled(left_s)
        return portion or int(is_idle())

    async def settled(self, timeout_s: float | None = None) -> None:
        """Waits until a lane has let something go, or for `timeout_s`."""
        self.changed.clear()
        await bounded(self.changed.wait(), timeout_s)

    def note(self, unit: Held) -> None:
        """A unit has been finished, and weighed so much."""
        self._unit = Held(*(max(new, FORGET * old, least) for new, old, least in zip(unit, self._unit, LEAST, strict=True)))

    def _portion(self, is_idle: bool) -> int:
        free, half = self._free(), self._limits.outputs / 2
        inputs = int(free.inputs / self._unit.inputs)
        outputs = max(1, int(half / self._unit.outputs)) if free.outputs >= half else 0
        return min(max(inputs, 1) if is_idle else inputs, outputs)

    def _free(self) -> Held:
        held = [holder.held for holder in self._holders.values()]
        inputs, outputs = sum(each.inputs for each in held), sum(each.outputs for each in held)
        return Held(self._limits.inputs - inputs, self._limits.outputs - outputs)
