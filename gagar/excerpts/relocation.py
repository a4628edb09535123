"""Where records of an excerpt come to lie, and records whose references lead there. Pure.

In: the offsets that the records had, and the offset at which each partition goes on. A partition keeps its number, and its
records their order, so the new place of each is known before anything is written: references may lead in any direction.

A reference is a map with the fields of a `LogRef`, wherever it stands in a record; fields that this version does not know are
kept. Of a record that is not in the excerpt two things can be true: retention had taken it, then its place is before the
beginning of the new log as it was of the old one; or there never was one, then its place is beyond the end of any log.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gagar.stream.retries import HEADER as RETRY
from gagar.stream.transport import Headers, Partition

NOWHERE = 1 << 48
"""Added to the offset of a record that never was."""
FIELDS = frozenset({"topic", "partition", "offset"})


class Retired(NamedTuple):
    """What is known of the beginning of a partition that retention had taken."""

    begin: int
    """The first offset that was left."""
    offsets: list[int]
    """Those before that records refer to, ascending."""


class Relocation:
    """From old places to new ones."""

    def __init__(
        self, offsets: Mapping[Partition, "array[int]"], ends: Mapping[Partition, int], retired: Mapping[Partition, Retired]
    ) -> None:
        """`offsets`: of the records, ascending. `ends`: where each partition goes on. `retired`: partitions of which
        retention had taken the beginning."""
        self._offsets = offsets
        self._ends = ends
        self._retired = retired

    def offset(self, at: Partition, offset: int) -> int:
        """The new offset of the record that lay there."""
        places = self._offsets.get(at, array("q"))
        index = bisect_left(places, offset)
        if index < len(places) and places[index] == offset:
            return self._ends[at] + index
        begin, gone = self._retired.get(at, Retired(0, []))
        if not 0 <= offset < begin:
            return NOWHERE + abs(offset)
        index = bisect_left(gone, offset)
        return 1 + index if index < len(gone) and gone[index] == offset else 0

    def value(self, value: bytes) -> bytes:
        """A record with the references that it holds; bytes that are no record stay as they are."""
        if b"offset" not in value:
            return value
        try:
            plain = msgspec.msgpack.decode(value)
            moved = self._moved(plain)
        except (msgspec.DecodeError, RecursionError):
            return value
        return value if moved == plain else msgspec.msgpack.encode(moved)

    def headers(self, headers: Headers) -> list[tuple[str, bytes]]:
        """Headers of a record; the mark of a retried one refers to others."""
        return [(name, self._mark(value) if name == RETRY else value) for name, value in headers]

    def _mark(self, value: bytes) -> bytes:
        try:
            return msgspec.json.encode(self._moved(msgspec.json.decode(value)))
        except (msgspec.DecodeError, RecursionError):
            return value

    def _moved(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._moved(item) for item in value]
        if isinstance(value, bytes):  # a dead letter holds the record that was rejected
            return self.value(value)
        if not isinstance(value, dict):
            return value
        if value.keys() >= FIELDS and isinstance(value["partition"], int) and isinstance(value["offset"], int):
            return {**value, "offset": self.offset(Partition(str(value["topic"]), value["partition"]), value["offset"])}
        return {key: self._moved(item) for key, item in value.items()}
