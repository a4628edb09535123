"""Sources under failures that only a log in memory can be made to have."""

from tests.contract.test_sources import STAGE, Counting, expected, outcome, requested
from tests.contract.world import MemoryWorld, Process, write


async def test_a_source_that_lost_its_place_without_knowing_starts_no_producer() -> None:
    world = MemoryWorld()
    async with Process(world, STAGE, Counting(100, ahead=3)) as old:
        await old.until_finished(3)
        world.log.group(STAGE.name).remove(old.transport)  # type: ignore[arg-type]
        async with Process(world, STAGE, Counting(5, ahead=3)) as new:
            await new.until(lambda: new.runtime.counters.takeovers == 1)
            await write(world, [outcome(0)])
            await old.until(lambda: old.runtime._producer is None)
            await new.until_finished(1)
            await write(world, [outcome(1)])
            await new.ended()
    assert (old.runtime.counters.takeovers, new.runtime.counters.takeovers) == (1, 1)
    assert await requested(world) == expected(5)
