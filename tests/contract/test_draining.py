"""What a stage does with its work when its group is divided anew, and when it is told to stop."""

import asyncio

import msgspec

from gagar.stream.limits import RuntimeLimits
from tests.builders import make_request
from tests.contract.test_effects import Worker, groups_of, requests
from tests.contract.world import FAST, TRAJECTORIES, Process, World, make_stage, write

STAGE = make_stage("effect")
PATIENT = msgspec.structs.replace(FAST, drain_s=3600.0)


def with_window(window: int) -> RuntimeLimits:
    return msgspec.structs.replace(FAST, window=window)


async def test_nothing_begins_between_a_revocation_and_the_division_and_what_ends_is_committed(world: World) -> None:
    everything = [request.group_id for request in requests(40)]
    await write(world, requests(40))
    worker = Worker(held=everything)
    async with Process(world, STAGE, worker, with_window(4)) as process:
        await process.until(lambda: worker.calls.total() == 16)
        await process.runtime.on_revoked()
        worker.release.set()
        await process.until_finished(16)
        await asyncio.sleep(0.2)
        assert worker.calls.total() == 16
        process.runtime.on_assigned(frozenset(range(4)))
        await process.until_finished(40)
    assert set(worker.calls.values()) == {1}
    assert await groups_of(world, TRAJECTORIES) == everything


async def test_a_stop_lets_work_end_and_begins_nothing(world: World) -> None:
    everything = [request.group_id for request in requests(20)]
    await write(world, requests(20))
    worker = Worker(held=everything)
    async with Process(world, STAGE, worker, PATIENT) as process:
        await process.until(lambda: worker.calls.total() == 20)
        process.stopping.set()
        await write(world, [make_request(f"u-{number:06d}") for number in range(20)])
        await asyncio.sleep(0.5)
        assert process.task is not None
        assert not process.task.done()
        worker.release.set()
        await process.ended()
    assert set(worker.calls.values()) == {1}
    assert await groups_of(world, TRAJECTORIES) == everything
    counters = process.runtime.counters
    assert (counters.finished, counters.abandoned, counters.wasted) == (20, 0, 0)


async def test_partitions_on_which_work_goes_on_stay_while_a_stage_stops_and_another_comes(world: World) -> None:
    """Those that the group gives to the newcomer move; no others, and the one that stops takes none."""
    everything = [request.group_id for request in requests(40)]
    await write(world, requests(40))
    first, second = Worker(held=everything), Worker()
    async with Process(world, STAGE, first, PATIENT) as one:
        await one.until(lambda: first.calls.total() == 40)
        one.stopping.set()
        async with Process(world, STAGE, second) as two:
            await two.until(lambda: two.runtime.counters.finished == one.runtime.counters.abandoned > 0)
            assert len(one.runtime.lanes) == len(two.runtime.lanes) == 2
        await asyncio.sleep(0.3)
        assert len(one.runtime.lanes) == 2, "it takes back none of those that the other leaves"
        first.release.set()
        await one.ended()
    assert set(first.calls.values()) == {1}
    assert await groups_of(world, TRAJECTORIES) == everything
    assert one.runtime.counters.abandoned == len(second.calls)


async def test_a_second_word_ends_a_stop_at_once_and_what_is_finished_is_committed(world: World) -> None:
    slow = [request.group_id for request in requests(20)[:5]]
    await write(world, requests(20))
    worker = Worker(held=slow)
    async with Process(world, STAGE, worker, PATIENT) as process:
        await process.until_finished(15)
        process.stopping.set()
        await asyncio.sleep(0.3)
        assert process.task is not None
        assert not process.task.done()
        process.runtime.stop_at_once()
        await process.ended()
    counters = process.runtime.counters
    assert (counters.finished, counters.abandoned, counters.wasted) == (15, 5, 0)
    assert len(await groups_of(world, TRAJECTORIES)) == 15


async def test_a_member_with_a_name_that_is_restarted_has_its_partitions_again_and_nothing_moves(world: World) -> None:
    everything = [request.group_id for request in requests(40)]
    await write(world, requests(40))
    first, second, again = Worker(held=everything), Worker(held=everything), Worker()
    async with Process(world, STAGE, second, PATIENT, "b") as two:
        async with Process(world, STAGE, first, PATIENT, "a") as one:
            await one.until(lambda: len(one.runtime.lanes) == len(two.runtime.lanes) == 2)
            ours, theirs = one.runtime.counters, two.runtime.counters
            await one.until(lambda: ours.delivered + theirs.delivered - theirs.abandoned == 40)
            numbers, before = set(one.runtime.lanes), (theirs.takeovers, theirs.abandoned)
            one.stopping.set()
            first.release.set()
            await one.ended()
        await write(world, [make_request(f"u-{number:06d}") for number in range(40)])
        async with Process(world, STAGE, again, PATIENT, "a") as three:
            await three.until(lambda: set(three.runtime.lanes) == numbers)
            second.release.set()
            await three.until(lambda: theirs.finished + three.runtime.counters.finished + len(first.calls) == 80)
            assert set(two.runtime.lanes).isdisjoint(numbers)
    assert (theirs.takeovers, theirs.abandoned) == before, "nothing has moved since the first came"
    assert set(first.calls).isdisjoint(again.calls)
    assert ours.abandoned == three.runtime.counters.abandoned == 0
