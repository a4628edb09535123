"""The vitals of a stage's lanes, for whoever asks whether the stage is alive."""

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeVar

from gagar.stream.lanes.lane import Lane

N = TypeVar("N", int, float)


class LaneVitals(NamedTuple):
    """Of all lanes of a process together; see `gagar.health.vitals.Vitals`."""

    num_partitions: int
    num_waiting: int
    silent_s: float
    polled_at: float | None
    idle_since: float | None
    """The oldest last poll among lanes that nothing holds back from reading; none if there is no such lane."""
    lag: int | None
    num_in_work: int


def vitals_of(lanes: Collection[Lane]) -> LaneVitals:
    """A lane with work in progress may have no room to read more, and waits for as long as that takes."""
    at_work = [(lane, lane.reader) for lane in lanes if lane.reader is not None]
    readers = [reader for _, reader in at_work]
    lags = _known(reader.lag() for reader in readers)
    return LaneVitals(
        num_partitions=len(lanes),
        num_waiting=len(lanes) - len(readers),
        silent_s=max((reader.silent_s for reader in readers), default=0.0),
        polled_at=max(_known(reader.polled_at for reader in readers), default=None),
        idle_since=min(_known(reader.polled_at for lane, reader in at_work if _is_free(lane)), default=None),
        lag=sum(lags) if lags else None,
        num_in_work=sum(lane.num_in_work for lane in lanes),
    )


def _is_free(lane: Lane) -> bool:
    return lane.is_open and not lane.num_in_work


def _known(values: Iterable[N | None]) -> list[N]:
    return [value for value in values if value is not None]
