"""Sources: one acts at a time, from a cursor that is committed with what it made."""

import asyncio
from typing import Any

import pytest

from gagar.errors import FencedError, GagarError
from gagar.records import Outcome, encode
from gagar.stream.lanes.frontier import Frontier
from gagar.stream.transport import Committed, Partition, Send
from tests.contract.counting import STAGE, Counting
from tests.contract.world import FAST, OUTCOMES, REQUESTS, Process, World, opened, read, write


def outcome(number: int) -> Outcome:
    return Outcome(group_id=f"t-{number:06d}", task_id="", purpose="training", kind="dropped", reason="all_failed")


async def requested(world: World) -> list[tuple[str, int]]:
    return sorted((d.record.group_id, d.record.sample_index) for d in await read(world, REQUESTS))


def expected(total: int) -> list[tuple[str, int]]:
    return [(f"t-{number:06d}", index) for number in range(total) for index in range(2)]


async def test_a_source_ends_by_itself_when_nothing_is_due_ever_again(world: World) -> None:
    async with Process(world, STAGE, Counting(20)) as process:
        await process.ended()
    assert await requested(world) == expected(20)


async def test_a_restarted_source_goes_on_from_its_cursor_with_the_past_observed(world: World) -> None:
    await write(world, [outcome(90), outcome(91)])
    first = Counting(50, ahead=5)
    async with Process(world, STAGE, first) as process:
        await process.until_finished(7)
    assert (first.seen_at_first, first.restored) == (2, [b""])
    await write(world, [outcome(number) for number in range(3)])
    second = Counting(12, ahead=20)
    async with Process(world, STAGE, second) as process:
        await process.ended()
    assert (second.seen_at_first, second.restored) == (5, [b"7"])
    assert await requested(world) == expected(12)


async def test_table_records_wake_a_waiting_source(world: World) -> None:
    async with Process(world, STAGE, Counting(6, ahead=1)) as process:
        for number in range(5):
            await process.until_finished(number + 1)
            await write(world, [outcome(number)])
        await process.ended()
    assert await requested(world) == expected(6)


async def test_a_second_source_waits_and_takes_over_when_the_first_leaves(world: World) -> None:
    first, second = Counting(100, ahead=3), Counting(10, ahead=1000)
    async with Process(world, STAGE, first) as one:
        await one.until_finished(3)
        async with Process(world, STAGE, second) as two:
            await asyncio.sleep(0.5)
            assert not second.restored
            await one.stop()
            await two.ended()
    assert second.restored == [b"3"]
    assert await requested(world) == expected(10)


async def test_a_source_whose_producer_was_fenced_looks_at_the_cursor_and_goes_on(world: World) -> None:
    source = Counting(6, ahead=3)
    async with Process(world, STAGE, source) as process:
        await process.until_finished(3)
        async with opened(world) as transport:
            await (await transport.start_producer("asker.0", [REQUESTS])).close()
        await write(world, [outcome(number) for number in range(3)])
        await process.ended()
    assert process.runtime.counters.takeovers == 2
    assert await requested(world) == expected(6)


async def test_a_source_ends_with_an_error_if_another_has_moved_the_cursor(world: World) -> None:
    from gagar.stream.lanes.frontier import Frontier
    from gagar.stream.transport import Committed, Partition

    async with Process(world, STAGE, Counting(6, ahead=3), FAST) as process:
        await process.until_finished(3)
        async with opened(world) as transport:
            producer = await transport.start_producer("asker.0", [REQUESTS])
            offset, metadata = Frontier(0, note=b"5").snapshot()
            await producer.begin()
            await producer.commit("asker", {Partition("outcomes", 0): Committed(offset=offset, metadata=metadata)})
            await producer.close()
        await write(world, [outcome(number) for number in range(3)])
        with pytest.raises(FencedError, match="expected its own cursor"):
            await process.ended()


class Wary(Counting):
    """Takes the outcome of a group that it has not asked for as the end, as the sampler does."""

    def observe(self, record: Any) -> None:
        if isinstance(record, Outcome) and int(record.group_id[2:]) >= self.cursor:
            raise GagarError("outcome: expected an earlier group, got a later one")


async def succeed(world: World) -> None:
    """A successor's transaction: a cursor, and the outcome of a group that only it has asked for."""
    async with opened(world) as transport:
        successor = await transport.start_producer(f"{STAGE.name}.0", [OUTCOMES])
        await successor.begin()
        await (await successor.send(Send(topic=OUTCOMES.name, key=b"t-000005", value=encode(outcome(5)))))
        metadata = Frontier(0, note=b"6").snapshot()[1]
        await successor.commit(STAGE.name, {Partition(OUTCOMES.name, 0): Committed(offset=0, metadata=metadata)})
        await successor.close()


async def test_a_source_that_was_replaced_unawares_ends_as_fenced_and_not_by_what_it_reads_of_its_successor(
    world: World,
) -> None:
    async with Process(world, STAGE, Wary(10, ahead=1)) as process:
        await process.until(lambda: process.runtime.counters.finished == 1)
        await succeed(world)
        with pytest.raises(FencedError, match="got another's"):
            await process.ended()
