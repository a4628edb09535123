"""Whether scaling has restarted handlers in place: counted from the traces of the processes.

In: the process that was there before a scaling, those that came beside it, and from when to when. A partition was kept if the
first process owned it all the time and no other began anything of it; a delivery that a handler began on twice there was
restarted, without need.
"""

from collections.abc import Collection
from pathlib import Path

import msgspec

from tests.chaos.tampering import Entry, read_trace


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen in one scaling."""

    num_kept: int
    """Handlers that were in work, on partitions that were kept, when the group was divided anew."""
    restarted: list[str]
    """Deliveries that were begun again."""


def owned_by(directory: Path, stage: str, pid: int) -> list[int]:
    """The partition numbers that a process owns now."""
    return next((entry.numbers for entry in reversed(list(read_trace(directory, stage, pid))) if entry.kind == "own"), [])


def watched(directory: Path, stage: str, pid: int, others: Collection[int], began: float, ended: float) -> Watched:
    """What a scaling did to the handlers of process `pid`."""
    mine = list(read_trace(directory, stage, pid))
    theirs = [entry for other in others for entry in read_trace(directory, stage, other)]
    kept = kept_partitions(mine, began, ended) - {entry.numbers[0] for entry in theirs if entry.kind == "start"}
    return Watched(
        num_kept=len(set().union(*(in_work(mine, kept, entry.at) for entry in mine if is_division(entry, began, ended)))),
        restarted=[
            f"{stage} pid {pid} partition {place[0]} offset {place[1]}: begun {len(times)} times"
            for place, times in starts_on(mine, kept).items()
            if len(times) > 1 and began <= times[-1] <= ended
        ],
    )


def kept_partitions(entries: list[Entry], began: float, ended: float) -> set[int]:
    """Those owned when a time began and at each division until its end."""
    owned = [(entry.at, set(entry.numbers)) for entry in entries if entry.kind == "own" and entry.at <= ended]
    before = [numbers for at, numbers in owned if at <= began]
    if not before:
        return set()
    return before[-1].intersection(*(numbers for at, numbers in owned if at > began))


def is_division(entry: Entry, began: float, ended: float) -> bool:
    return entry.kind == "own" and began < entry.at <= ended


def in_work(entries: list[Entry], partitions: Collection[int], at: float) -> set[tuple[int, int]]:
    """The deliveries that handlers had begun on and not ended at a time."""
    kinds = {(entry.numbers[0], entry.numbers[1]): entry.kind for entry in entries if entry.kind != "own" and entry.at <= at}
    return {place for place, kind in kinds.items() if kind == "start" and place[0] in partitions}


def starts_on(entries: list[Entry], partitions: Collection[int]) -> dict[tuple[int, int], list[float]]:
    """By delivery, when a handler began on it."""
    starts: dict[tuple[int, int], list[float]] = {}
    for entry in entries:
        if entry.kind == "start" and entry.numbers[0] in partitions:
            starts.setdefault((entry.numbers[0], entry.numbers[1]), []).append(entry.at)
    return starts
