"""Lanes under failures of the log: whatever fails, and wherever a process dies, each input has its outputs once."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gagar.errors import UnavailableError
from gagar.records import RolloutRequest
from gagar.stream.handlers import Delivery, Effect, Linked, Output, Transform
from gagar.stream.lanes.frontier import AT_START
from gagar.stream.memory.transport import MemoryProducer
from gagar.stream.transport import Committed, Partition, RefusedError
from tests.builders import make_request
from tests.contract.world import (
    DEAD_LETTERS,
    FAST,
    REQUESTS,
    TOKENS,
    TRAJECTORIES,
    MemoryWorld,
    Process,
    make_stage,
    make_tokens,
    make_trajectory,
    read,
    write,
)

STAGE = make_stage("effect")
NUM = 24


class Answering(Effect):
    """Counts its calls; answers with two linked records."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        self.calls[delivery.key] += 1
        for _ in range(delivery.record.seed % 5):
            await asyncio.sleep(0)
        return [Linked(first=make_tokens(delivery.record), then=lambda ref: make_trajectory(delivery, tokens=ref))]


class Holding(Answering):
    def __init__(self) -> None:
        super().__init__()
        self.release = asyncio.Event()

    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        self.calls[delivery.key] += 1
        await self.release.wait()
        return []


def requests() -> list[RolloutRequest]:
    return [make_request(f"t-{number:06d}", seed=number) for number in range(NUM)]


async def check(world: MemoryWorld) -> None:
    """Each request has one trajectory and one token record, and they belong together."""
    tokens = {str(d.ref): d.key for d in await read(world, TOKENS)}
    trajectories = await read(world, TRAJECTORIES)
    assert sorted(d.key for d in trajectories) == [request.group_id for request in requests()]
    assert sorted(tokens.values()) == [request.group_id for request in requests()]
    assert all(tokens[str(d.record.attempt.tokens)] == d.key for d in trajectories)


@pytest.mark.parametrize("call", ["start", "begin", "send", "answer", "commit", "lost answer", "poll"])
async def test_a_failing_log_is_met_by_a_new_producer_and_handlers_that_go_on(call: str) -> None:
    world = MemoryWorld()
    await write(world, requests())
    handler, many_transactions = Answering(), msgspec.structs.replace(FAST, linger_s=0.0)
    async with Process(world, STAGE, handler, many_transactions) as process:
        world.log.faults[call] = [UnavailableError(f"{call}: expected to work, got a fault") for _ in range(6)]
        await process.until(lambda: len(handler.calls) == NUM)
        await process.until(lambda: all(lane.queue.spots() == set() for lane in process.runtime.lanes.values()))
    await check(world)
    assert set(handler.calls.values()) == {1}
    assert not world.log.faults[call], "every fault has been met"
    assert process.runtime.counters.abandoned == 0


async def test_records_that_retention_took_away_are_reported_and_the_rest_is_read(caplog: pytest.LogCaptureFixture) -> None:
    world = MemoryWorld()
    await write(world, requests())
    async with Process(world, STAGE, Answering()) as process:
        await process.until_finished(NUM)
    await write(world, [make_request(f"u-{number:06d}") for number in range(40)])
    for at in [Partition(REQUESTS.name, number) for number in range(4)]:
        world.log.truncate(at, world.log.partitions[at].end - 3)
    handler = Answering()
    async with Process(world, STAGE, handler) as process:
        await process.until_finished(8)
    assert sum(handler.calls.values()) == 8, "two records and a marker are left in each partition"
    assert caplog.text.count("records lost before they were read") == 4
    assert process.runtime.counters.dead_letters == 0


async def test_a_topic_that_was_made_anew_stops_the_stage_instead_of_being_read_from_the_start() -> None:
    world = MemoryWorld()
    await write(world, requests())
    for number in range(4):
        world.log.group(STAGE.name).offsets[Partition(REQUESTS.name, number)] = Committed(offset=1000, metadata=AT_START)
    async with Process(world, STAGE, Answering()) as process:
        with pytest.raises(Exception, match="the topic was cut or made anew"):
            await process.ended()


def refuse_one(world: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log takes every trajectory but that of t-000007."""
    append = world.log.append

    def picky(send: Any, *args: Any, **kwargs: Any) -> Any:
        if send.topic == TRAJECTORIES.name and send.key == b"t-000007":
            raise RefusedError("trajectories: expected less, got more")
        return append(send, *args, **kwargs)

    monkeypatch.setattr(world.log, "append", picky)


async def test_an_output_that_the_log_refuses_makes_a_dead_letter_of_its_input_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MemoryWorld()
    await write(world, requests())
    refuse_one(world, monkeypatch)
    async with Process(world, STAGE, Answering()) as process:
        await process.until_finished(NUM)
    [letter] = await read(world, DEAD_LETTERS)
    assert letter.key == "t-000007"
    assert "expected less, got more" in letter.record.error
    assert len(await read(world, TRAJECTORIES)) == NUM - 1
    assert len(await read(world, TOKENS)) == NUM - 1, "the first of two linked records goes with the second"


async def test_a_bug_in_a_link_makes_a_dead_letter_with_its_traceback() -> None:
    class Broken(Answering):
        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            return [Linked(first=make_tokens(delivery.record), then=lambda ref: 1 // 0)]  # type: ignore[arg-type, return-value]

    world = MemoryWorld()
    await write(world, requests()[:1])
    async with Process(world, STAGE, Broken()) as process:
        await process.until_finished(1)
    [letter] = await read(world, DEAD_LETTERS)
    assert "ZeroDivisionError" in letter.record.error
    assert not await read(world, TOKENS)


async def test_offsets_of_another_program_stop_the_stage() -> None:
    world = MemoryWorld()
    await write(world, requests())
    world.log.group(STAGE.name).offsets[Partition(REQUESTS.name, 0)] = Committed(offset=1, metadata="theirs")
    async with Process(world, STAGE, Answering()) as process:
        with pytest.raises(Exception, match="another program commits to this group"):
            await process.ended()


async def test_no_more_than_the_window_is_in_work_and_reading_goes_on_when_there_is_room() -> None:
    world = MemoryWorld()
    await write(world, [make_request("t-000001", seed=number) for number in range(200)])
    handler = Holding()
    async with Process(world, STAGE, handler) as process:
        await process.until(lambda: handler.calls.total() == 64)
        for _ in range(50):
            await asyncio.sleep(0)
        assert process.runtime.counters.delivered == 64
        handler.release.set()
        await process.until_finished(200)


class Staggered(Answering):
    """Handlers that end one after the other, 5 ms apart."""

    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        await asyncio.sleep(0.005 * delivery.record.seed)
        return []


@pytest.mark.parametrize(("linger_s", "few"), [(30.0, True), (0.0, False)])
async def test_a_transaction_waits_a_moment_for_handlers_at_work_on_its_partition(linger_s: float, few: bool) -> None:
    world = MemoryWorld()
    await write(world, [make_request("t-000001", seed=number) for number in range(16)])
    limits = msgspec.structs.replace(FAST, linger_s=linger_s)
    async with Process(world, STAGE, Staggered(), limits) as process:
        await process.until_finished(16)
    assert (process.runtime.counters.transactions <= 2) is few


async def test_a_transaction_waits_for_nothing_where_no_handler_is_at_work() -> None:
    world = MemoryWorld()
    await write(world, requests())
    began = time.monotonic()
    async with Process(world, STAGE, Answering(), msgspec.structs.replace(FAST, linger_s=60.0)) as process:
        await process.until_finished(NUM)
    assert time.monotonic() - began < 30.0


async def test_a_producer_that_hangs_is_given_up_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MemoryWorld()
    await write(world, requests())
    original = MemoryProducer.commit
    hanging = iter([True])

    async def commit(self: MemoryProducer, *args: Any) -> None:
        if next(hanging, False):
            await asyncio.Event().wait()
        await original(self, *args)

    monkeypatch.setattr(MemoryProducer, "commit", commit)
    limits = msgspec.structs.replace(FAST, transaction_timeout_s=0.5)
    async with Process(world, STAGE, Answering(), limits) as process:
        await process.until_finished(NUM)
    assert process.runtime.counters.takeovers == 5
    await check(world)


async def test_outputs_that_wait_for_their_commit_are_bounded_in_bytes_and_a_large_one_passes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Heavy(Answering):
        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            self.calls[delivery.key] += 1
            return [make_tokens(delivery.record, num_tokens=100_000)]

    most = 0
    original = MemoryProducer.commit

    async def commit(self: MemoryProducer, *args: Any) -> None:
        nonlocal most
        most = max(most, sum(lane.held.outputs for lane in process.runtime.lanes.values()))
        await original(self, *args)

    world = MemoryWorld()
    await write(world, requests())
    monkeypatch.setattr(MemoryProducer, "commit", commit)
    handler = Heavy()
    limits = msgspec.structs.replace(FAST, max_output_bytes=1000)
    async with Process(world, STAGE, handler, limits) as process:
        await process.until_finished(NUM)
    assert 1_300_000 < most < 4 * 1_301_000, "one of 1.3 MB for each of four lanes, however small the budget"


async def test_a_handler_cancelled_from_within_is_a_bug_and_not_a_record_that_is_never_finished() -> None:
    class Cancelled(Answering):
        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            self.calls[delivery.key] += 1
            raise asyncio.CancelledError

    world = MemoryWorld()
    await write(world, requests()[:1])
    handler = Cancelled()
    async with Process(world, STAGE, handler) as process:
        await process.until_finished(1)
    [letter] = await read(world, DEAD_LETTERS)
    assert "CancelledError" in letter.record.error
    assert handler.calls.total() == 3


async def test_a_handler_that_blocks_the_loop_is_named_with_stage_record_and_line_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Blocking(Answering):
        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            if delivery.key == "t-000007":
                until = time.monotonic() + 0.4
                while time.monotonic() < until:
                    pass
            return []

    world = MemoryWorld()
    await write(world, requests())
    async with Process(world, STAGE, Blocking()) as process:
        await process.until_finished(NUM)
        [ref] = [d.ref for d in await read(world, REQUESTS) if d.key == "t-000007"]
    [line] = [r.getMessage() for r in caplog.records if "event loop blocked" in r.message and str(ref) in r.message]
    assert line.startswith("event loop blocked stage=under-test for_s=0.")
    assert f"task=under-test {ref} at={__file__}:" in line
    assert process.runtime.counters.blocked >= 1


async def test_a_plain_output_that_the_log_refuses_is_noticed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MemoryWorld()
    await write(world, requests())
    refuse_one(world, monkeypatch)
    async with Process(world, make_stage("transform"), Transform(lambda request: [make_trajectory(request)])) as process:
        await process.until_finished(NUM)
    assert [letter.key for letter in await read(world, DEAD_LETTERS)] == ["t-000007"]
    assert len(await read(world, TRAJECTORIES)) == NUM - 1


async def test_a_process_that_lost_its_place_without_knowing_starts_no_producer() -> None:
    world = MemoryWorld()
    sleeper, handler = Holding(), Answering()
    await write(world, requests())
    async with Process(world, STAGE, sleeper) as old:
        await old.until(lambda: len(sleeper.calls) == NUM)
        world.log.group(STAGE.name).remove(old.transport)  # type: ignore[arg-type]
        async with Process(world, STAGE, handler) as new:
            await new.until_finished(NUM)
            sleeper.release.set()
            await old.until(lambda: all(lane._producer is None for lane in old.runtime.lanes.values()))
            await write(world, [make_request(f"u-{number:06d}") for number in range(NUM)])
            await new.until_finished(2 * NUM)
    assert (old.runtime.counters.takeovers, new.runtime.counters.takeovers) == (4, 4)


async def test_what_has_finished_is_committed_before_the_group_is_divided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MemoryWorld()
    await write(world, requests())
    original, release = MemoryProducer.commit, asyncio.Event()

    async def commit(self: MemoryProducer, *args: Any) -> None:
        await release.wait()
        await original(self, *args)

    monkeypatch.setattr(MemoryProducer, "commit", commit)
    async with Process(world, STAGE, Answering()) as one:
        await one.until(lambda: sum(len(lane.queue) for lane in one.runtime.lanes.values()) == NUM)
        async with Process(world, STAGE, Answering()) as two:
            for _ in range(50):
                await asyncio.sleep(0)
            release.set()
            await two.until(lambda: len(two.runtime.lanes) == 2)
            await one.until_finished(NUM)
    assert (one.runtime.counters.abandoned, two.runtime.counters.delivered) == (0, 0)


class Releasing(Holding):
    """Handlers that end after the revocation has been waited for: nothing but the last commit can save what they have done."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        runtime, on_revoked = process.runtime, process.runtime.on_revoked

        async def then_release() -> None:
            await on_revoked()
            if self.calls.total() == NUM:
                self.release.set()
                await process.until(lambda: sum(len(lane.queue) for lane in runtime.lanes.values()) == NUM)

        runtime.on_revoked = then_release
        runtime._handler = self


@pytest.mark.parametrize(("is_quick", "num_wasted"), [(True, 0), (False, NUM // 2)])
async def test_what_ends_after_a_revocation_gets_a_last_commit_or_is_counted(
    monkeypatch: pytest.MonkeyPatch, is_quick: bool, num_wasted: int
) -> None:
    world = MemoryWorld()
    await write(world, requests())
    original, is_held = MemoryProducer.commit, asyncio.Event()
    may_commit = asyncio.Event()

    async def commit(self: MemoryProducer, *args: Any) -> None:
        is_held.set()
        await may_commit.wait()
        await original(self, *args)

    one = Process(world, STAGE, Holding())
    handler = Releasing(one)
    if is_quick:  # the commit under way goes through as the division is told
        on_assigned = one.runtime.on_assigned

        def then_commit(numbers: frozenset[int]) -> None:
            on_assigned(numbers)
            if is_held.is_set():
                may_commit.set()

        one.runtime.on_assigned = then_commit
    async with one:
        await one.until(lambda: len(handler.calls) == NUM)
        monkeypatch.setattr(MemoryProducer, "commit", commit)
        successor = Answering()
        async with Process(world, STAGE, successor) as two:
            await two.until(lambda: len(two.runtime.lanes) == 2 and len(one.runtime.lanes) == 2)
            may_commit_later = asyncio.get_running_loop().call_later(0.5, may_commit.set)
            await two.until(lambda: one.runtime.counters.finished + two.runtime.counters.finished == NUM)
            may_commit_later.cancel()
    counters = one.runtime.counters
    assert (counters.wasted, counters.abandoned, successor.calls.total()) == (num_wasted, num_wasted, num_wasted)


async def test_nothing_begins_on_a_partition_that_went_while_its_last_commit_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Holding):
        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            begun[delivery.ref.partition] += 1
            return await super().handle(delivery)

    begun: Counter[int] = Counter()
    world, handler, may_commit = MemoryWorld(), Counting(), asyncio.Event()
    await write(world, requests())
    original = MemoryProducer.commit

    async def commit(self: MemoryProducer, *args: Any) -> None:
        await may_commit.wait()
        await original(self, *args)

    async with Process(world, STAGE, handler, msgspec.structs.replace(FAST, window=2)) as process:
        runtime = process.runtime
        await process.until(lambda: begun.total() == 8)
        monkeypatch.setattr(MemoryProducer, "commit", commit)
        handler.release.set()
        await process.until(lambda: sum(len(lane.queue) for lane in runtime.lanes.values()) == 8)  # and no word of a revocation
        runtime.on_assigned(frozenset({0, 1}))
        may_commit.set()
        await process.until(lambda: begun[0] + begun[1] > 4 and runtime.counters.finished > 8)
        await asyncio.sleep(0.1)
        assert (begun[2], begun[3], runtime.counters.wasted) == (2, 2, 0)


async def test_a_revocation_waits_for_what_is_finished_and_not_for_what_ends_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ticking(Holding):
        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            self.calls[delivery.key] += 1
            await asyncio.sleep(0.02 * self.calls.total())
            return []

    original = MemoryProducer.commit

    async def commit(self: MemoryProducer, *args: Any) -> None:
        await asyncio.sleep(0.1)
        await original(self, *args)

    monkeypatch.setattr(MemoryProducer, "commit", commit)
    world = MemoryWorld(num_partitions=1)
    await write(world, [make_request(f"t-{number:06d}") for number in range(64)])
    async with Process(world, STAGE, Ticking(), msgspec.structs.replace(FAST, revoke_s=60.0)) as process:
        await process.until_finished(4)
        async with asyncio.timeout(0.6):
            await process.runtime.on_revoked()
        assert process.runtime.counters.finished < 64
        process.runtime.on_assigned(frozenset({0}))


async def test_the_new_owner_of_a_partition_leaves_the_one_before_it_time_for_its_last_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = MemoryWorld()
    await write(world, requests())
    original = MemoryProducer.commit

    async def commit(self: MemoryProducer, *args: Any) -> None:
        await asyncio.sleep(0.1)
        await original(self, *args)

    limits = msgspec.structs.replace(FAST, handover_s=0.8)
    one, successor = Process(world, STAGE, Holding(), limits), Answering()
    handler = Releasing(one)
    async with one:
        await one.until(lambda: one.runtime.counters.takeovers == 4, 0.7)  # alone, it waits for nobody
        await one.until(lambda: len(handler.calls) == NUM)
        monkeypatch.setattr(MemoryProducer, "commit", commit)
        async with Process(world, STAGE, successor, limits) as two:
            await two.until(lambda: two.runtime.counters.takeovers == 2)
            assert (one.runtime.counters.finished, successor.calls.total()) == (NUM, 0)
    assert (one.runtime.counters.wasted, one.runtime.counters.abandoned) == (0, 0)
