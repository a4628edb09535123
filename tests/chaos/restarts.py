"""Work that was done again, or begun where it was lost: counted from the traces of the processes.

Of one scaling. In: the process that was there before it, those that came beside it, and from when to when. A partition was kept
if the first process owned it all the time and no other began anything of it; a delivery that a handler began on twice there was
restarted, without need. Of a whole run. In: the directory of the traces.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from tests.chaos.tampering import Entry, read_trace


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen in one scaling."""

    num_kept: int
    """Handlers that were in work, on partitions that were kept, when the group was divided anew."""
    restarted: list[str]
    """Deliveries that were begun again."""


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen in a whole run."""

    num_reran: int
    """Deliveries that a handler had answered and another one, of another process, began again: of partitions that moved too
    early, and of processes that were killed before their commit."""
    begun_after_loss: list[str]
    """Deliveries that a handler began on though its process had been told that the partition was another's."""


def waste(directory: Path) -> Waste:
    """What all processes of a run have done in vain; one stage's traces are in memory at a time."""
    pids: dict[str, list[int]] = {}
    for path in sorted(directory.glob("*.trace")):
        stage, pid, _ = path.name.split(".")
        pids.setdefault(stage, []).append(int(pid))
    found = [_waste(stage, {pid: list(read_trace(directory, stage, pid)) for pid in pids[stage]}) for stage in pids]
    return Waste(
        num_reran=sum(part.num_reran for part in found),
        begun_after_loss=[delivery for part in found for delivery in part.begun_after_loss],
    )


def _waste(stage: str, processes: Mapping[int, list[Entry]]) -> Waste:
    return Waste(
        num_reran=len(reran(processes)),
        begun_after_loss=[
            f"{stage} pid {pid} partition {place[0]} offset {place[1]}"
            for pid, entries in processes.items()
            for place in begun_on_lost(entries)
        ],
    )


def reran(processes: Mapping[int, list[Entry]]) -> set[tuple[int, int]]:
    """Deliveries of a stage that were begun in another process after a handler had answered."""
    answered: dict[tuple[int, int], tuple[float, int]] = {}
    starts = []
    for pid, entries in processes.items():
        for entry in entries:
            place = entry.numbers[0], entry.numbers[-1]
            if entry.kind == "done":
                answered[place] = min(answered.get(place, (entry.at, pid)), (entry.at, pid))
            elif entry.kind == "start":
                starts.append((place, entry.at, pid))
    return {place for place, at, pid in starts if place in answered and answered[place][0] < at and answered[place][1] != pid}


def begun_on_lost(entries: list[Entry]) -> list[tuple[int, int]]:
    """Deliveries that one process began on partitions that were not its own then."""
    owned: list[int] = []
    begun = []
    for entry in entries:
        if entry.kind == "own":
            owned = entry.numbers
        elif entry.kind == "start" and entry.numbers[0] not in owned:
            begun.append((entry.numbers[0], entry.numbers[1]))
    return begun


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
