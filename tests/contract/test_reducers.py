"""Reducers: a group is one unit over both inputs, through restarts, lateness and deadlines."""

import asyncio
import random
import time

import pytest
from msgspec.structs import replace

from gagar.stream.handlers import Reduced
from gagar.stream.lanes.frontier import AT_START
from gagar.stream.log_clock import LogClock
from gagar.stream.transport import Send
from tests.builders import make_request
from tests.contract.gathering import SIZE, STAGE, Gathering, State, request_groups, verdict
from tests.contract.world import DEAD_LETTERS, OUTCOMES, REQUESTS, VERDICTS, Process, World, committed, make_stage, read, write


async def test_a_group_closes_once_with_its_last_verdict_and_leaves_no_lag(world: World) -> None:
    groups = [f"t-{number:06d}" for number in range(20)]
    refs = await request_groups(world, groups)
    async with Process(world, STAGE, Gathering()) as process:
        for index in range(SIZE):
            await write(world, [verdict(refs, group, index) for group in groups])
        await process.until_finished(20 * 2 * SIZE)
    outcomes = await read(world, OUTCOMES)
    assert sorted(d.record.group_id for d in outcomes) == groups
    assert {entry.metadata for entry in (await committed(world, STAGE)).values()} == {AT_START}


async def test_open_groups_are_rebuilt_from_the_log_after_a_restart(world: World) -> None:
    groups = [f"t-{number:06d}" for number in range(12)]
    refs = await request_groups(world, groups)
    await write(world, [verdict(refs, group, 0) for group in groups])
    await write(world, [verdict(refs, groups[0], index) for index in (1, 2)])
    async with Process(world, STAGE, Gathering()) as process:
        await process.until_finished(2 * SIZE)
        await process.until(lambda: process.runtime.counters.delivered == 12 * SIZE + 12 + 2)
    await write(world, [verdict(refs, group, index) for group in groups[1:] for index in (1, 2)])
    async with Process(world, STAGE, Gathering()) as process:
        await process.until_finished(11 * 2 * SIZE)
        assert process.runtime.counters.delivered == 11 * 2 * SIZE, "what was finished is not delivered again"
    assert sorted(d.record.group_id for d in await read(world, OUTCOMES)) == groups


async def test_late_verdicts_are_counted_and_go_nowhere(world: World) -> None:
    refs = await request_groups(world, ["t-000001", "t-000002"])
    await write(world, [verdict(refs, "t-000001", index) for index in range(SIZE)])
    async with Process(world, STAGE, Gathering()) as process:
        await process.until_finished(2 * SIZE)
        await write(world, [verdict(refs, "t-000001", 1)])
        await process.until(lambda: process.runtime.counters.late == 1)
        await write(world, [verdict(refs, "t-000002", index) for index in range(SIZE)])
        await process.until_finished(4 * SIZE + 1)
    assert len(await read(world, OUTCOMES)) == 2


async def test_a_deadline_closes_what_has_not_arrived(world: World) -> None:
    refs = await request_groups(world, ["t-000001"], deadline_s=1.0)
    await write(world, [verdict(refs, "t-000001", 0)])
    async with Process(world, STAGE, Gathering()) as process:
        await process.until_finished(SIZE + 1)
    [outcome] = await read(world, OUTCOMES)
    assert (outcome.record.group_id, outcome.record.num_valid) == ("expired", 1)


@pytest.mark.parametrize("skew_s", [-600.0, 3600.0], ids=["behind", "ahead"])
async def test_deadlines_go_by_the_logs_time_whatever_the_hosts_clock_says(world: World, skew_s: float) -> None:
    refs = await request_groups(world, ["t-000001"], deadline_s=3.0)
    await request_groups(world, ["t-000002"])
    process = Process(world, STAGE, Gathering())
    process.transport.clock = LogClock(wall=lambda: time.time() + skew_s)
    asked = max([d.at for d in await read(world, REQUESTS) if d.key == "t-000001"])
    async with process:
        await process.until(lambda: process.runtime.counters.delivered >= 2 * SIZE)
        await write(world, [verdict(refs, "t-000001", 0)])
        await process.until_finished(SIZE + 1)
    assert asked + 3.0 <= process.transport.clock.now() < asked + 10.0
    [outcome] = await read(world, OUTCOMES)
    assert (outcome.record.group_id, outcome.record.num_valid) == ("expired", 1)


async def test_a_backlog_is_judged_by_its_own_time(world: World) -> None:
    deadline = time.time() + 1.0
    refs = await request_groups(world, ["t-000001"], deadline_s=1.0)
    await write(world, [verdict(refs, "t-000001", index) for index in range(SIZE)])
    while time.time() < deadline + 0.1:
        await write(world, [make_request("t-000009", 0)])
        await asyncio.sleep(0.1)
    reducer = Gathering()
    async with Process(world, STAGE, reducer) as process:
        await process.until_finished(2 * SIZE)
    assert [d.record.group_id for d in await read(world, OUTCOMES)] == ["t-000001"]
    assert all(times == sorted(times) for times in reducer.times.values()), "stream time never goes back"
    written = [d.at for topic in (REQUESTS, VERDICTS) for d in await read(world, topic) if d.key == "t-000001"]
    assert reducer.times[refs["t-000001", 0].partition][2 * SIZE - 1] <= max(written)


async def test_a_poisoned_verdict_is_dead_and_its_group_ends_by_its_deadline(world: World) -> None:
    refs = await request_groups(world, ["t-000001"], deadline_s=1.0)
    poison = Send(topic="verdicts", key=b"t-000001", value=b"\xc1")
    await write(world, [verdict(refs, "t-000001", 0), poison, verdict(refs, "t-000001", 1)])
    async with Process(world, STAGE, Gathering()) as process:
        await process.until_finished(SIZE + 3)
    assert [d.record.value for d in await read(world, DEAD_LETTERS)] == [b"\xc1"]
    assert [d.record.num_valid for d in await read(world, OUTCOMES)] == [2]


async def test_two_members_share_the_groups_and_none_is_lost_or_doubled(world: World) -> None:
    groups = [f"t-{number:06d}" for number in range(30)]
    refs = await request_groups(world, groups)
    async with Process(world, STAGE, Gathering()) as one:
        await write(world, [verdict(refs, group, 0) for group in groups])
        await one.until(lambda: one.runtime.counters.delivered >= 30 * SIZE + 30)
        async with Process(world, STAGE, Gathering()) as two:
            await two.until(lambda: len(two.runtime.lanes) == 2)
            await write(world, [verdict(refs, group, 1) for group in groups])
            await write(world, [verdict(refs, group, 2) for group in groups[:15]])
            await one.until(lambda: one.runtime.counters.finished + two.runtime.counters.finished >= 15 * 2 * SIZE)
        await write(world, [verdict(refs, group, 2) for group in groups[15:]])
        await one.until(lambda: one.runtime.counters.finished + two.runtime.counters.finished >= 30 * 2 * SIZE)
    assert sorted(d.record.group_id for d in await read(world, OUTCOMES)) == groups


@pytest.mark.parametrize("believed_bytes", [1 << 20, 4 << 20], ids=["by the runtime", "by the log"])
async def test_a_group_whose_output_is_refused_ends_as_a_dead_letter_with_all_its_inputs(
    world: World, believed_bytes: int
) -> None:
    class Verbose(Gathering):
        def closed(self, group_id: str, state: State) -> Reduced:
            [outcome] = super().closed(group_id, state).outputs
            text = random.Random(1).randbytes(3 << 19).hex() if group_id in ("t-000003", "t-000004") else ""
            return Reduced(outputs=[replace(outcome, task_id=text)], is_closed=True)

    groups = [f"t-{number:06d}" for number in range(8)]
    refs = await request_groups(world, groups)
    stage = make_stage("reducer", (REQUESTS, VERDICTS), outputs=(replace(OUTCOMES, max_record_bytes=believed_bytes),))
    await write(world, [verdict(refs, group, index) for index in range(SIZE) for group in groups])
    async with Process(world, stage, Verbose()) as process:
        await process.until(lambda: process.runtime.counters.finished >= len(groups) * 2 * SIZE)
    assert sorted(d.key for d in await read(world, DEAD_LETTERS)) == ["t-000003", "t-000004"]
    ends = {d.record.group_id: d.record.reason for d in await read(world, OUTCOMES)}
    assert ends == {group: "dead_letter" if group in ("t-000003", "t-000004") else "all_passed" for group in groups}
    assert {entry.metadata for entry in (await committed(world, stage)).values()} == {AT_START}
