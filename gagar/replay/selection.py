"""Which records of the past are replayed.

In: what a person chose. Out: whether an input, or a recorded answer, is among it. Pure.
"""

import math
from typing import Any

import msgspec

from gagar.records import GradedGroup
from gagar.stream.handlers import Delivery


class OffsetRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of one partition of a stage's first input."""

    partition: int
    first: int
    last: int
    """It belongs to the range."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed: records that every field takes; a field that is empty takes all."""

    groups: frozenset[str] | None = None
    """Ids of groups; None: all."""
    tasks: frozenset[str] = frozenset()
    since: float = 0.0
    """Broker time of the input, Unix seconds; of a group with several inputs, that of its first."""
    until: float = 0.0
    """The same; 0: no end. It does not belong to the time that is taken."""
    offsets: tuple[OffsetRange, ...] = ()

    def takes(self, delivery: Delivery[Any]) -> bool:
        """Of the stage's first input."""
        ref = delivery.ref
        is_in_range = any(it.partition == ref.partition and it.first <= ref.offset <= it.last for it in self.offsets)
        return (is_in_range or not self.offsets) and self.takes_answer(delivery)

    def takes_answer(self, delivery: Delivery[Any]) -> bool:
        """Of what the stage answered; offsets of its input say nothing of it, and time it took somewhat later."""
        return self.takes_group(delivery) and self.since <= delivery.at < (self.until or math.inf)

    def takes_group(self, delivery: Delivery[Any]) -> bool:
        """By group and task alone."""
        is_group = self.groups is None or delivery.key in self.groups
        return is_group and (not self.tasks or task_of(delivery.record) in self.tasks)


def task_of(record: Any) -> str:
    """The task of a record; empty if it names none."""
    task_id: str = record.group.task_id if isinstance(record, GradedGroup) else getattr(record, "task_id", "")
    return task_id
