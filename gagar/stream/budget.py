"""How much a process of a stage holds in bytes: inputs in work, and encoded outputs that wait for their commit.

Shared by all lanes of the process, since memory is. Two bounds, since they cost differently: few inputs in work starve nobody
whose handlers are quick, while small transactions cost the broker dearly. What a handler will have made cannot be known before
it ends; so intake goes by what units weighed of late, in portions that fit into what is free. Never below one delivery for each
lane: the largest record passes.
"""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Protocol

FORGET = 0.9
"""A heavy unit counts a tenth less with each lighter one after it."""


class Held(NamedTuple):
    """Bytes."""

    inputs: float
    outputs: float


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
        self._limits = limits
        self._holders = holders
        self._unit = FIRST_GUESS

    @property
    def is_spent(self) -> bool:
        """Whether more is held than should be."""
        return min(self._free()) <= 0

    def room(self) -> int:
        """Deliveries that one lane may take now, if each weighs what the heaviest did of late and all lanes take so many."""
        portions = (free / size for free, size in zip(self._free(), self._unit, strict=True))
        return int(min(portions) / max(1, len(self._holders)))

    def note(self, unit: Held) -> None:
        """A unit has been finished, and weighed so much."""
        self._unit = Held(*(max(new, FORGET * old, least) for new, old, least in zip(unit, self._unit, LEAST, strict=True)))

    def _free(self) -> Held:
        held = [holder.held for holder in self._holders.values()]
        inputs, outputs = sum(each.inputs for each in held), sum(each.outputs for each in held)
        return Held(self._limits.inputs - inputs, self._limits.outputs - outputs)
