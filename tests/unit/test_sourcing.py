"""Sources under failures that only a log in memory can be made to have."""

import pytest

from gagar.errors import FencedError, GagarError, UnavailableError
from gagar.records import LogRef
from gagar.stream.memory.transport import MemoryLog, Transaction
from gagar.stream.transport import Committed, Partition, RefusedError, Send
from tests.contract.counting import STAGE, Counting
from tests.contract.test_sources import Wary, expected, outcome, requested, succeed
from tests.contract.world import NUM_PARTITIONS, TOPICS, MemoryWorld, Process, write


async def test_a_source_that_lost_its_place_without_knowing_starts_no_producer() -> None:
    world = MemoryWorld()
    async with Process(world, STAGE, Counting(100, ahead=3)) as old:
        await old.until_finished(3)
        world.log.group(STAGE.name).remove(old.transport)  # type: ignore[arg-type]
        async with Process(world, STAGE, Counting(5, ahead=3)) as new:
            await new.until(lambda: new.runtime.counters.takeovers == 1)
            await write(world, [outcome(0)])
            await old.until(lambda: old.runtime.lanes[0]._producer is None)
            await new.until_finished(1)
            await write(world, [outcome(1)])
            await new.ended()
    assert (old.runtime.counters.takeovers, new.runtime.counters.takeovers) == (1, 1)
    assert await requested(world) == expected(5)


async def test_a_source_that_was_replaced_waits_for_a_log_that_is_away_before_it_says_why_it_ends() -> None:
    world = MemoryWorld()
    async with Process(world, STAGE, Wary(10, ahead=1)) as process:
        await process.until_finished(1)
        lane = process.runtime.lanes[0]
        ask, num_away = lane.committed, iter(range(3))

        async def committed() -> dict[Partition, Committed]:
            if next(num_away, None) is not None:
                raise UnavailableError("offsets: expected an answer, got none")
            found: dict[Partition, Committed] = await ask()
            return found

        lane.committed = committed
        await succeed(world)
        with pytest.raises(FencedError, match="got another's"):
            await process.ended()
    assert next(num_away, None) is None


async def test_a_source_that_loses_its_place_ends_and_one_that_keeps_it_goes_on() -> None:
    world = MemoryWorld()
    async with Process(world, STAGE, Counting(100, ahead=3)) as process:
        await process.until_finished(2)
        process.runtime.on_assigned(frozenset({0, 3}))
        await process.until_finished(3)
        assert list(process.runtime.lanes) == [0]
        process.runtime.on_assigned(frozenset({1, 3}))
        with pytest.raises(FencedError, match="expected to keep its place, got a rebalance; start it again"):
            await process.ended()
    assert process.runtime.counters.takeovers == 1


async def test_a_unit_whose_commit_was_not_answered_is_made_once() -> None:
    world = MemoryWorld()
    for call in ("lost answer", "commit", "answer", "start"):
        world.log.faults[call] = [UnavailableError(f"{call}: expected one, got none")]
    async with Process(world, STAGE, Counting(6)) as process:
        await process.ended()
    assert await requested(world) == expected(6)


async def test_a_source_whose_output_the_log_refuses_ends_and_skips_nothing() -> None:
    class Picky(MemoryLog):
        def append(self, send: Send, transaction: Transaction | None = None, at: float | None = None) -> LogRef:
            if send.key == b"t-000002":
                raise RefusedError("rollout-requests: expected a smaller record")
            return super().append(send, transaction, at)

    world = MemoryWorld()
    world.log = Picky(TOPICS, NUM_PARTITIONS)
    async with Process(world, STAGE, Counting(6)) as process:
        with pytest.raises(GagarError, match="stage asker: expected outputs that the log takes, got rollout-requests"):
            await process.ended()
    assert await requested(world) == expected(2)
