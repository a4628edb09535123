"""How much a process of a stage holds in bytes: inputs in work and encoded outputs that wait for their commit.

Shared by all lanes of the process, since memory is. What a handler will have made cannot be known before it ends; so intake
goes by what units weighed of late, in portions that fit into what is free. Never below one delivery for each lane: the largest
record passes.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

FIRST_GUESS_BYTES = 1 << 20
LEAST_BYTES = 1 << 10
FORGET = 0.9
"""A heavy unit counts a tenth less with each lighter one after it."""


class Holder(Protocol):
    """A lane, seen as what it holds."""

    @property
    def num_bytes(self) -> int: ...


class Budget:
    """See the module."""

    def __init__(self, max_bytes: int, holders: Mapping[int, Holder]) -> None:
        self.changed = asyncio.Event()
        """Set whenever a lane has settled units: all that wait for room look again."""
        self._max_bytes = max_bytes
        self._holders = holders
        self._unit_bytes: float = FIRST_GUESS_BYTES

    @property
    def is_spent(self) -> bool:
        """Whether more is held than should be."""
        return self._free() <= 0

    def room(self) -> int:
        """Deliveries that one lane may take now, if each weighs what the heaviest did of late and all lanes take so many."""
        return int(self._free() / (self._unit_bytes * max(1, len(self._holders))))

    def note(self, num_bytes: int) -> None:
        """A unit has been finished."""
        self._unit_bytes = max(num_bytes, FORGET * self._unit_bytes, LEAST_BYTES)

    def _free(self) -> int:
        return self._max_bytes - sum(holder.num_bytes for holder in self._holders.values())
