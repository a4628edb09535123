"""The vitals of a stage's lanes, for whoever asks whether the stage is alive."""

from collections.abc import Collection
from typing import NamedTuple

from gagar.stream.lanes.lane import Lane


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
    readers = [lane.reader for lane in lanes if lane.reader is not None]
    idle = [lane.reader for lane in lanes if lane.reader is not None and lane.is_open and not lane.num_in_work]
    lags = [lag for reader in readers if (lag := reader.lag()) is not None]
    return LaneVitals(
        num_partitions=len(lanes),
        num_waiting=len(lanes) - len(readers),
        silent_s=max((reader.silent_s for reader in readers), default=0.0),
        polled_at=max((at for reader in readers if (at := reader.polled_at) is not None), default=None),
        idle_since=min((at for reader in idle if (at := reader.polled_at) is not None), default=None),
        lag=sum(lags) if lags else None,
        num_in_work=sum(lane.num_in_work for lane in lanes),
    )
