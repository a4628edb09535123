"""Reading into frontiers: spans, gaps, offsets that are gone, silence."""

from collections.abc import Sequence
from typing import Any

import pytest

from gagar.errors import GagarError, UnavailableError
from gagar.records import RolloutRequest
from gagar.stream.lanes.frontier import AT_START, SPAN_LIMIT, Frontier
from gagar.stream.lanes.reading import LaneReader
from gagar.stream.limits import Counters
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.readers.watched import WatchedReader
from gagar.stream.spec import Kept, Topic
from gagar.stream.transport import OutOfRangeError, Partition, RawRecord

AT = Partition("t", 0)


class FakeReader:
    """Answers polls with what a test has planned."""

    def __init__(self, *answers: list[int] | Exception) -> None:
        self.answers = list(answers)
        self.at = 0
        self.paused: set[Partition] = set()
        self.caught_up = False

    async def seek(self, at: Partition, offset: int | None, /) -> None:
        self.at = offset or 0

    async def poll(self, timeout_s: float, max_records: int, /) -> list[RawRecord]:
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        if answer:
            self.at = answer[-1] + 1
        return [RawRecord(at=AT, offset=offset, key=b"", value=b"", time=0.0) for offset in answer]

    def pause(self, at: Partition, /) -> None:
        self.paused.add(at)

    def resume(self, at: Partition, /) -> None:
        self.paused.discard(at)

    def position(self, at: Partition, /) -> int:
        return self.at

    def is_caught_up(self, at: Partition, /) -> bool:
        return self.caught_up

    def end(self, at: Partition, /) -> int | None:
        return None

    async def ends(self) -> dict[Partition, int]:
        return {}

    async def close(self) -> None: ...


class FakeTransport(MemoryTransport):
    """Its readers are one and the same."""

    def __init__(self, reader: FakeReader) -> None:
        super().__init__(MemoryLog([]))
        self.reader = reader

    async def open_reader(self, partitions: Sequence[Partition], /, *, is_single: bool = False) -> Any:
        return self.reader


async def start(
    fake: FakeReader,
    frontier: Frontier | None = None,
    *,
    kept: Kept = "by time",
    counters: Counters | None = None,
    stall_s: float = 45.0,
) -> tuple[LaneReader, Frontier]:
    topic = Topic(name=AT.topic, record=RolloutRequest, kept=kept)
    frontier = frontier or Frontier()
    watched = WatchedReader("lane", FakeTransport(fake), [AT], stall_s)
    reader = LaneReader("lane", watched, [topic], {AT: frontier}, counters or Counters())
    return reader, frontier


async def poll(reader: LaneReader, max_records: int) -> list[RawRecord]:
    return reader.due(max_records) if await reader.fill(0, 10) else []


async def test_what_is_finished_is_passed_over() -> None:
    reader, _ = await start(FakeReader([0, 1, 2, 3]), Frontier(0, finished=[1, 2]))
    assert [raw.offset for raw in await poll(reader, 10)] == [0, 3]


async def test_a_record_beyond_the_span_is_held_back_and_released_when_the_watermark_moves() -> None:
    fake = FakeReader([0, SPAN_LIMIT, SPAN_LIMIT + 1])
    reader, frontier = await start(fake)
    assert [raw.offset for raw in await poll(reader, 10)] == [0]
    assert fake.paused == {AT}
    assert not await poll(reader, 10)
    assert not reader.lagging(), "what cannot be read on does not hold time back"
    frontier.finish([0])
    assert [raw.offset for raw in await poll(reader, 1)] == [SPAN_LIMIT]
    assert fake.paused == {AT}
    assert [raw.offset for raw in await poll(reader, 10)] == [SPAN_LIMIT + 1]
    assert not fake.paused


async def test_markers_move_the_watermark() -> None:
    fake = FakeReader([0])
    reader, frontier = await start(fake)
    await poll(reader, 10)
    frontier.finish([0])
    fake.at = 5
    await poll(reader, 10)
    assert frontier.low == 5


async def test_offsets_that_are_gone_are_reported_counted_and_passed(caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()
    reader, frontier = await start(
        FakeReader(OutOfRangeError(AT, 3, 10, 20), [10]), Frontier(3, finished=[5]), counters=counters
    )
    assert not await poll(reader, 10)
    assert "records lost before they were read reader=lane partition=t[0] from=3 to=9 count=6" in caplog.text
    assert counters.missing == 6, "5 was finished"
    assert frontier.low == 10
    assert [raw.offset for raw in await poll(reader, 10)] == [10]


async def test_records_that_stand_for_groups_and_are_gone_stop_the_stage() -> None:
    reader, _ = await start(FakeReader(OutOfRangeError(AT, 3, 10, 20)), Frontier(3), kept="with the run")
    with pytest.raises(GagarError, match=r"lane: expected t\[0\] to hold offsets 3 to 9, got a log that begins at 10"):
        await poll(reader, 10)


async def test_offsets_that_are_gone_and_were_finished_are_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    reader, frontier = await start(
        FakeReader(OutOfRangeError(AT, 3, 5, 20)), Frontier(3, finished=[3, 4, 6]), kept="with the run"
    )
    assert not await poll(reader, 10)
    assert "records lost" not in caplog.text
    assert frontier.low == 5


async def test_an_offset_beyond_the_end_stops_the_stage() -> None:
    reader, _ = await start(FakeReader(OutOfRangeError(AT, 30, 10, 20)), Frontier(30))
    with pytest.raises(GagarError, match=r"expected t\[0\] to reach offset 30, got an end at 20"):
        await poll(reader, 10)


async def test_a_reader_that_fell_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("gagar.stream.readers.watched.time.monotonic", lambda: next(clock))
    fake = FakeReader([0])
    reader, _ = await start(fake, stall_s=25.0)
    await poll(reader, 10)
    await poll(reader, 10)
    await poll(reader, 10)
    with pytest.raises(UnavailableError, match="expected an answer within 25 s, got none"):
        await poll(reader, 10)


async def test_an_idle_reader_at_the_end_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("gagar.stream.readers.watched.time.monotonic", lambda: next(clock))
    fake = FakeReader()
    fake.caught_up = True
    reader, _ = await start(fake, stall_s=25.0)
    for _ in range(10):
        await poll(reader, 10)


async def test_reading_begins_after_what_is_in_work() -> None:
    fake = FakeReader()
    frontier = Frontier(3)
    frontier.deliver(5)
    reader, _ = await start(fake, frontier)
    await poll(reader, 10)
    assert fake.at == 6


async def test_a_partition_whose_span_is_full_from_the_first_record_on_is_not_fetched_further() -> None:
    fake = FakeReader([0], [SPAN_LIMIT], [SPAN_LIMIT + 1])
    reader, frontier = await start(fake)
    assert [raw.offset for raw in await poll(reader, 10)] == [0]
    assert not await poll(reader, 10)
    assert fake.paused == {AT}
    frontier.finish([0])
    assert [raw.offset for raw in await poll(reader, 10)] == [SPAN_LIMIT]
    assert not fake.paused


async def test_records_that_wait_for_their_turn_hold_time_back() -> None:
    fake = FakeReader([0, 1, 2])
    fake.caught_up = True
    reader, _ = await start(fake)
    assert await reader.fill(0, 10)
    assert [raw.offset for raw in reader.due(1)] == [0]
    assert reader.lagging() == [AT]
    reader.due(10)
    assert not reader.lagging()


async def test_markers_without_end_do_not_outgrow_the_span() -> None:
    fake = FakeReader([0])
    reader, frontier = await start(fake)
    await poll(reader, 10)
    fake.at = 3 * SPAN_LIMIT
    await poll(reader, 10)
    assert frontier.next == SPAN_LIMIT
    frontier.finish([0])
    await poll(reader, 10)
    assert frontier.snapshot() == (3 * SPAN_LIMIT, AT_START)
