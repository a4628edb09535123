"""Stream time, timers, and what a reducer may not do."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gagar.errors import GagarError
from gagar.records import LogRef, Outcome, encode
from gagar.stream.handlers import Delivery, Reduced, Reducer
from gagar.stream.lanes.context import StageContext
from gagar.stream.lanes.reducing import ReducerWork, StreamTime
from gagar.stream.lanes.units import Spot, Unit, UnitQueue
from gagar.stream.limits import RuntimeLimits
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.transport import Partition, RawRecord
from tests.builders import make_request
from tests.contract.world import DEAD_LETTERS, OUTCOMES, REQUESTS, VERDICTS, make_stage

A, B = Partition("rollout-requests", 0), Partition("verdicts", 0)
STAGE = make_stage("reducer", (REQUESTS, VERDICTS), outputs=(OUTCOMES,))


def make_raw(offset: int = 0, at: Partition = A, time: float = 10.0, key: str = "t-000001", **fields: Any) -> RawRecord:
    return RawRecord(at=at, offset=offset, key=key.encode(), value=encode(make_request(key, **fields)), time=time)


class FakeLane:
    """Collects finished units."""

    is_open = True

    def __init__(self) -> None:
        self.queue = UnitQueue()
        self.finished: list[Unit] = []
        self.behind: list[Partition] = []

    async def opened(self) -> bool:
        return True

    def finish(self, unit: Unit) -> None:
        self.finished.append(unit)

    def is_finished(self, spot: Spot) -> bool:
        return any(spot in unit.inputs for unit in self.finished)

    def lagging(self) -> Iterable[Partition]:
        return self.behind

    def fail(self, error: BaseException) -> None:
        raise error


class Scripted(Reducer[Any]):
    """Answers by script; expires 5 s after a key's first delivery."""

    def __init__(self, apply: Callable[[list[Any], float], Reduced] = lambda state, now: Reduced()) -> None:
        self.answer = apply
        self.expired: list[float] = []

    def start(self, key: str) -> list[Any]:
        return []

    def apply(self, state: list[Any], delivery: Delivery[Any], now: float) -> Reduced:
        state.append(delivery)
        return self.answer(state, now)

    def wake_at(self, state: list[Any]) -> float | None:
        return float(state[0].at) + 5.0

    def expire(self, state: list[Any], now: float) -> Reduced:
        self.expired.append(now)
        return Reduced(is_closed=True)

    def is_late(self, delivery: Delivery[Any], is_finished: Callable[[LogRef], bool]) -> bool:
        return delivery.record.sample_index > 0 and is_finished(LogRef(topic=A.topic, partition=0, offset=0))


def make_work(reducer: Any, wall: Callable[[], float] = lambda: 100.0) -> tuple[ReducerWork, FakeLane]:
    lane = FakeLane()
    context = StageContext.of(STAGE, MemoryTransport(MemoryLog([])), DEAD_LETTERS, RuntimeLimits(), {})
    return ReducerWork(lane, reducer, context, StreamTime(wall)), lane


def test_stream_time_is_the_clock_when_all_is_read() -> None:
    clock = StreamTime(lambda: 100.0)
    clock.note(make_raw(time=10.0))
    assert clock.now([]) == 100.0


def test_stream_time_is_the_last_record_of_the_input_that_lags_most() -> None:
    clock = StreamTime(lambda: 100.0)
    assert clock.now([A, B]) == 0.0
    clock.note(make_raw(at=A, time=50.0))
    assert clock.now([A, B]) == 0.0
    clock.note(make_raw(at=B, time=20.0))
    assert clock.now([A, B]) == 20.0
    assert clock.now([A]) == 50.0


def test_stream_time_never_goes_back_and_never_passes_the_clock() -> None:
    clock = StreamTime(lambda: 100.0)
    clock.note(make_raw(time=500.0))
    assert clock.now([A]) == 100.0
    clock.note(make_raw(time=20.0))
    assert clock.now([A]) == 100.0


async def test_a_key_expires_by_stream_time_and_not_while_its_records_may_be_unread() -> None:
    reducer = Scripted()
    work, lane = make_work(reducer)
    lane.behind = [A, B]
    await work.take(make_raw(0, A, time=10.0))
    work.tick()
    assert not reducer.expired
    lane.behind = [A]
    await work.take(make_raw(1, A, time=14.0, key="t-000002"))
    work.tick()
    assert not reducer.expired
    await work.take(make_raw(2, A, time=15.0, key="t-000002"))
    work.tick()
    assert reducer.expired == [15.0]
    assert [unit.inputs for unit in lane.finished] == [(Spot(A, 0),)]


async def test_a_backlog_is_applied_at_its_own_time_even_if_it_was_read_at_once() -> None:
    times: list[float] = []
    work, _ = make_work(Scripted(lambda state, now: times.append(now) or Reduced()))  # type: ignore[func-returns-value]
    await work.take(make_raw(0, A, time=10.0))
    await work.take(make_raw(1, A, time=11.0))
    assert times == [10.0, 11.0]


async def test_a_late_delivery_is_finished_alone_and_a_closed_key_is_late_before_its_commit() -> None:
    work, lane = make_work(Scripted(lambda state, now: Reduced(is_closed=True)))
    await work.take(make_raw(0))
    await work.take(make_raw(1, sample_index=1))
    assert [(unit.kind, unit.inputs) for unit in lane.finished] == [("done", (Spot(A, 0),)), ("late", (Spot(A, 1),))]


async def test_outputs_of_an_open_key_are_a_bug_that_stops_the_stage() -> None:
    outcome = Outcome(group_id="t", task_id="", purpose="training", kind="dropped")
    work, _ = make_work(Scripted(lambda state, now: Reduced(outputs=[outcome])))
    with pytest.raises(GagarError, match="expected outputs of a closed key only"):
        await work.take(make_raw(0))


async def test_a_reducers_bug_moves_one_delivery_to_the_dead_letters() -> None:
    def apply(state: list[Any], now: float) -> Reduced:
        if len(state) == 2:
            raise ValueError("no")
        return Reduced(is_closed=len(state) == 3)

    work, lane = make_work(Scripted(apply))
    for offset in range(3):
        await work.take(make_raw(offset))
    assert [unit.kind for unit in lane.finished] == ["dead", "done"]
    assert lane.finished[1].inputs == (Spot(A, 0), Spot(A, 2))


async def test_a_bug_at_expiry_ends_the_key_as_a_dead_letter_with_its_outcome() -> None:
    class Broken(Scripted):
        def expire(self, state: list[Any], now: float) -> Reduced:
            raise ValueError("no")

    work, lane = make_work(Broken())
    await work.take(make_raw(0, time=10.0))
    work.tick()
    [unit] = lane.finished
    assert (unit.kind, unit.inputs, len(unit.outputs)) == ("dead", (Spot(A, 0),), 2)


async def test_after_a_lost_producer_everything_open_is_built_anew() -> None:
    work, _ = make_work(Scripted(), wall=lambda: 11.0)
    await work.take(make_raw(0))
    await work.take(make_raw(1, key="t-000002"))
    assert sorted(work.held()) == [Spot(A, 0), Spot(A, 1)]
    assert work.abandon(lambda spot: True) == 2
    assert list(work.held()) == []
