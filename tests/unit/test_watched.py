"""The watched reader: given up when it stalls, opened anew where it was."""

from collections.abc import Sequence

import pytest

from gagar.errors import UnavailableError
from gagar.stream.memory.transport import MemoryReader, MemoryTransport
from gagar.stream.readers import watched
from gagar.stream.readers.watched import WatchedReader, partitions_of
from gagar.stream.transport import OutOfRangeError, Partition
from tests.builders import make_request
from tests.contract.world import REQUESTS, VERSIONS, MemoryWorld, write

AT = Partition(REQUESTS.name, 0)
OTHER = Partition(VERSIONS.name, 0)


class CountingTransport(MemoryTransport):
    """Keeps the readers that were opened."""

    def __init__(self, world: MemoryWorld) -> None:
        super().__init__(world.log)
        self.opened: list[MemoryReader] = []

    async def open_reader(self, partitions: Sequence[Partition], /, *, is_single: bool = False) -> MemoryReader:
        self.opened.append(await super().open_reader(partitions))
        return self.opened[-1]


async def start(world: MemoryWorld, stall_s: float = 45.0) -> tuple[WatchedReader, CountingTransport]:
    await write(world, [make_request(sample_index=index) for index in range(3)])
    transport = CountingTransport(world)
    reader = WatchedReader("reader", transport, await partitions_of(transport, [REQUESTS, VERSIONS]), stall_s)
    await reader.open({AT: None, OTHER: 0})
    return reader, transport


async def test_a_reader_that_failed_is_opened_anew_at_its_positions_with_its_pauses() -> None:
    world = MemoryWorld(num_partitions=1)
    reader, transport = await start(world)
    assert [raw.offset for raw in await reader.poll(0.0, 2)] == [0, 1]
    reader.pause(OTHER)
    world.log.faults["poll"] = [UnavailableError("poll: expected an answer, got none")]
    with pytest.raises(UnavailableError):
        await reader.poll(0.0, 2)
    assert reader.behind() == [AT], "a reader that is closed knows nothing"
    assert [raw.offset for raw in await reader.poll(0.0, 2)] == [2]
    assert len(transport.opened) == 2
    assert transport.opened[1]._paused == {OTHER}
    assert reader.behind() == []


async def test_a_reader_that_stalls_is_given_up_and_one_at_the_end_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MemoryWorld(num_partitions=1)
    reader, transport = await start(world, stall_s=25.0)
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(watched, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(clock))}))
    await reader.poll(0.0, 10)
    for _ in range(10):
        assert not await reader.poll(0.0, 10)
    transport.opened[0].is_caught_up = lambda at: at == OTHER  # type: ignore[method-assign]
    for _ in range(2):
        assert not await reader.poll(0.0, 10)
    with pytest.raises(UnavailableError, match="reader: expected an answer within 25 s, got none"):
        await reader.poll(0.0, 10)
    assert not await reader.poll(0.0, 10)
    assert len(transport.opened) == 2


async def test_what_the_log_no_longer_holds_is_an_error_or_is_passed_over_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = MemoryWorld(num_partitions=1)
    reader, transport = await start(world)
    world.log.truncate(AT, 2)
    with pytest.raises(OutOfRangeError):
        await reader.poll(0.0, 10)
    assert await reader.poll_what_is_left() == []
    assert "records gone before they were read reader=reader partition=rollout-requests[0] from=0 to=2" in caplog.text
    assert [raw.offset for raw in await reader.poll_what_is_left()] == [2]
    assert len(transport.opened) == 1
