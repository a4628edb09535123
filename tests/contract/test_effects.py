"""Transforms and effects: every input once, in any order, through stops, poison and rebalances."""

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gagar.errors import BadRecordError, GagarError, MachineError, UnavailableError
from gagar.records import DeadLetter, Outcome, RolloutRequest, Trajectory, encode
from gagar.stream.handlers import Delivery, Effect, Linked, Output, References, Transform
from gagar.stream.lanes.frontier import AT_START
from gagar.stream.readers.references import LogReferences
from gagar.stream.spec import Topic
from gagar.stream.transport import Partition, Send
from tests.builders import make_request
from tests.contract.world import (
    DEAD_LETTERS,
    FAST,
    OUTCOMES,
    REQUESTS,
    TOKENS,
    TRAJECTORIES,
    VERSIONS,
    Process,
    World,
    committed,
    make_stage,
    make_tokens,
    make_trajectory,
    opened,
    read,
    write,
)


def requests(count: int, prefix: str = "t") -> list[RolloutRequest]:
    return [make_request(f"{prefix}-{number:06d}", number % 4, seed=number) for number in range(count)]


def to_trajectory(request: RolloutRequest) -> list[Output]:
    return [make_trajectory(request)]


class Worker(Effect):
    """An effect that records its calls; `held` names groups whose handler waits for `release`."""

    def __init__(self, held: Sequence[str] = ()) -> None:
        self.calls: Counter[str] = Counter()
        self.observed: list[Any] = []
        self.held = set(held)
        self.release = asyncio.Event()
        self.failures: dict[str, list[Exception]] = {}

    async def open(self, references: References) -> None:
        self.references = references

    def observe(self, record: Any, /) -> None:
        self.observed.append(record)

    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        group_id = delivery.record.group_id
        self.calls[group_id] += 1
        planned = self.failures.get(group_id)
        if planned:
            raise planned.pop(0)
        if group_id in self.held:
            await self.release.wait()
        return [make_trajectory(delivery)]


async def groups_of(world: World, topic: Topic) -> list[str]:
    return sorted(delivery.key for delivery in await read(world, topic))


async def test_a_transform_answers_every_record_once_and_leaves_no_lag(world: World) -> None:
    stage = make_stage("transform")
    await write(world, requests(50))
    async with Process(world, stage, Transform(to_trajectory)) as process:
        await process.until_finished(50)
        lanes = process.runtime.lanes.values()
        await process.until(lambda: not any([*lane.lagging()] or lane._has_moved() for lane in lanes))
    assert await groups_of(world, TRAJECTORIES) == [request.group_id for request in requests(50)]
    assert process.runtime.counters.delivered == 50
    async with opened(world) as transport:
        reader = await transport.open_reader([Partition("rollout-requests", number) for number in range(4)])
        ends = await reader.ends()
        await reader.close()
    positions = await committed(world, stage)
    assert sum(ends.values()) > 50, "markers occupy offsets"
    assert {at: entry.offset for at, entry in positions.items() if ends[at]} == {at: end for at, end in ends.items() if end}
    assert all(entry.metadata == AT_START for entry in positions.values())


async def test_a_slow_item_holds_back_nothing_and_only_it_is_done_again(world: World) -> None:
    stage = make_stage("effect")
    await write(world, requests(40))
    slow = requests(40)[3].group_id
    worker = Worker(held=[slow])
    async with Process(world, stage, worker) as process:
        await process.until_finished(39)
        assert slow not in await groups_of(world, TRAJECTORIES)
    assert process.runtime.counters.abandoned == 1
    successor = Worker()
    async with Process(world, stage, successor) as process:
        await process.until_finished(1)
    assert successor.calls == {slow: 1}
    assert await groups_of(world, TRAJECTORIES) == [request.group_id for request in requests(40)]


async def test_a_linked_output_refers_to_where_the_first_one_lies(world: World) -> None:
    class Linking(Worker):
        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            first = make_tokens(delivery.record, num_tokens=delivery.record.seed + 1)
            return [Linked(first=first, then=lambda ref: make_trajectory(delivery, tokens=ref))]

    await write(world, requests(20))
    async with Process(world, make_stage("effect"), Linking()) as process:
        await process.until_finished(20)
    trajectories: list[Any] = []
    async with asyncio.timeout(20):
        while len(trajectories) < 20:  # the end that readers see follows a commit's answer by a moment
            trajectories = [delivery.record for delivery in await read(world, TRAJECTORIES)]
    async with opened(world) as transport:
        references = LogReferences(transport, [TOKENS])
        tokens = await references.read([trajectory.attempt.tokens for trajectory in trajectories], TOKENS.record)
        requested = await read(world, REQUESTS)
        seeds = {delivery.record.group_id: delivery.record.seed for delivery in requested}
        for trajectory, record in zip(trajectories, tokens, strict=True):
            assert record.group_id == trajectory.group_id  # type: ignore[attr-defined]
            assert record.token_ids.length == seeds[trajectory.group_id] + 1  # type: ignore[attr-defined]
        await references.close()


async def test_a_bad_record_becomes_a_dead_letter_as_it_came_and_ends_its_group(world: World) -> None:
    headers = (("trace", b"\x00\xff"),)
    poison = [
        Send(topic="rollout-requests", key=b"t-poison", value=b"\xc1 not msgpack", headers=headers),
        Send(topic="rollout-requests", key=b"t-other", value=encode(make_trajectory(make_request("t-other")))),
        Send(topic="rollout-requests", key=b"\xff\xfe", value=encode(make_request("t-key"))),
    ]
    await write(world, [*requests(5), *poison])
    async with Process(world, make_stage("effect", holds_groups=True), Worker()) as process:
        await process.until_finished(8)
    letters = {delivery.record.key: delivery.record for delivery in await read(world, DEAD_LETTERS)}
    assert letters.keys() == {send.key for send in poison}
    letter = letters[b"t-poison"]
    assert letter.value == poison[0].value
    assert letter.headers == [("trace", b"\x00\xff")]
    assert letter.error.startswith(str(letter.source))
    outcomes = [delivery.record for delivery in await read(world, OUTCOMES)]
    assert {outcome.group_id for outcome in outcomes} == {"t-poison", "t-other"}
    assert {(outcome.kind, outcome.reason) for outcome in outcomes} == {("dropped", "dead_letter")}
    assert await groups_of(world, TRAJECTORIES) == [request.group_id for request in requests(5)]
    assert process.runtime.counters.dead_letters == 3


async def test_outages_are_retried_bugs_twice_and_bad_records_never(world: World) -> None:
    worker = Worker()
    outage, bug, bad = (request.group_id for request in requests(3))
    worker.failures = {
        outage: [UnavailableError("engine: expected to run, got a restart") for _ in range(4)],
        bug: [ValueError(f"try {number}") for number in range(3)],
        bad: [BadRecordError("x: expected y, got z")],
    }
    await write(world, requests(6))
    async with Process(world, make_stage("effect"), worker) as process:
        await process.until_finished(6)
    assert worker.calls == {outage: 5, bug: 3, bad: 1, **{request.group_id: 1 for request in requests(6)[3:]}}
    errors = {delivery.key: delivery.record.error for delivery in await read(world, DEAD_LETTERS)}
    assert errors.keys() == {bug, bad}
    assert "Traceback" in errors[bug]
    assert "ValueError: try 2" in errors[bug]


async def test_a_full_disk_under_a_handler_ends_the_stage_and_no_record_is_a_dead_letter(world: World) -> None:
    worker = Worker()
    told, full = (request.group_id for request in requests(2))
    words = os.strerror(errno.ENOSPC)  # a program in the sandbox may print them
    worker.failures = {told: [ValueError(words)] * 3, full: [OSError(errno.ENOSPC, words, "scratch")] * 3}
    await write(world, requests(2))
    async with Process(world, make_stage("effect"), worker) as process:
        with pytest.raises(MachineError, match="scratch: expected to take data, got no space left on device; make room"):
            await process.ended()
    assert worker.calls[full] == 1
    assert full not in {delivery.key for delivery in await read(world, DEAD_LETTERS)}
    async with Process(world, make_stage("effect"), worker) as process:  # with room: the record is delivered again
        worker.failures = {}
        await process.until(lambda: worker.calls[full] == 2)
    assert full in await groups_of(world, TRAJECTORIES)


async def test_an_oversized_output_is_a_dead_letter_and_harms_no_other(world: World) -> None:
    def transform(request: RolloutRequest) -> list[Output]:
        return [make_trajectory(request, patch="x" * (2 << 20) if request.seed == 2 else "")]

    await write(world, requests(10))
    async with Process(world, make_stage("transform"), Transform(transform)) as process:
        await process.until_finished(10)
    [letter] = await read(world, DEAD_LETTERS)
    assert letter.key == requests(10)[2].group_id
    assert "expected at most" in letter.record.error
    assert len(await read(world, TRAJECTORIES)) == 9


async def test_too_many_dead_letters_stop_the_stage(world: World) -> None:
    def broken(request: RolloutRequest) -> list[Output]:
        raise BadRecordError("everything: expected sense, got none")

    await write(world, requests(200))
    async with Process(world, make_stage("transform"), Transform(broken)) as process:
        with pytest.raises(GagarError, match="expected at most 32 dead letters in a row"):
            await process.ended()


async def test_a_rebalance_moves_partitions_and_disturbs_no_handler_that_stays(world: World) -> None:
    stage = make_stage("effect")
    everything = [request.group_id for request in requests(60)]
    await write(world, requests(60))
    first, second = Worker(held=everything), Worker()
    async with Process(world, stage, first) as one:
        await one.until(lambda: len(first.calls) == 60)
        async with Process(world, stage, second) as two:
            await two.until_finished(1)
            await one.until(lambda: len(one.runtime.lanes) == 2)
            await two.until(lambda: two.runtime.counters.finished == one.runtime.counters.abandoned)
            first.release.set()
            await one.until_finished(60 - one.runtime.counters.abandoned)
        await one.until(lambda: len(one.runtime.lanes) == 4)
    assert set(first.calls.values()) == {1}
    assert 0 < one.runtime.counters.abandoned < 60
    assert len(second.calls) == one.runtime.counters.abandoned
    assert await groups_of(world, TRAJECTORIES) == everything


async def test_nothing_begins_on_a_partition_that_was_lost_with_a_full_window(world: World) -> None:
    class Counting(Worker):
        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            begun.append(delivery.ref.partition)
            return await super().handle(delivery)

    begun: list[int] = []
    limits = msgspec.structs.replace(FAST, window=4)
    everything = [request.group_id for request in requests(80)]
    await write(world, requests(80))
    worker = Counting(held=everything)
    async with Process(world, make_stage("effect"), worker, limits) as one:
        await one.until(lambda: len(begun) == 16)
        async with Process(world, make_stage("effect"), Worker(held=everything), limits):
            await one.until(lambda: len(one.runtime.lanes) == 2)
            await asyncio.sleep(0.2)
            assert Counter(begun) == dict.fromkeys(range(4), 4)
            assert one.runtime.counters.abandoned == 8
        worker.release.set()


async def test_a_lane_whose_producer_was_fenced_recovers_and_keeps_its_handlers(world: World) -> None:
    stage = make_stage("effect")
    everything = [request.group_id for request in requests(30)]
    worker = Worker(held=everything)
    await write(world, requests(30))
    async with Process(world, stage, worker) as process:
        await process.until(lambda: len(worker.calls) == 30)
        async with opened(world) as transport:
            for number in range(4):
                await (await transport.start_producer(f"{stage.name}.{number}", stage.outputs)).close()
        worker.release.set()
        await process.until_finished(30)
    assert set(worker.calls.values()) == {1}
    assert process.runtime.counters.takeovers == 8
    assert await groups_of(world, TRAJECTORIES) == everything


async def test_tables_are_observed_before_the_first_delivery_and_followed(world: World) -> None:
    from gagar.records import PolicyVersion

    def version(number: int) -> PolicyVersion:
        return PolicyVersion(run_id="r", version=number, step=number, location="x", checksum="y")

    class Seeing(Worker):
        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            seen = [record.version for record in self.observed]
            assert seen[:2] == [0, 1]
            return await super().handle(delivery)

    await write(world, [version(0), version(1), Send(topic="policy-versions", key=b"r/0", value=None), *requests(3)])
    worker = Seeing()
    async with Process(world, make_stage("effect", tables=(VERSIONS,)), worker) as process:
        await process.until_finished(3)
        await write(world, [version(2)])
        await process.until(lambda: len(worker.observed) == 3)
    assert not await read(world, DEAD_LETTERS)


async def test_a_missing_topic_is_named_with_the_way_out(world: World) -> None:
    absent = Topic(name="absent", record=Outcome, kept="by time")
    async with opened(world) as transport:
        assert await transport.describe([absent]) == {}
    process = Process(world, make_stage("transform", outputs=(TRAJECTORIES, absent)), Transform(to_trajectory))
    await process.transport.open()
    try:
        with pytest.raises(GagarError, match="topic absent: expected it to exist, got nothing; run `gagar topics apply`"):
            await process.runtime.run(asyncio.Event())
    finally:
        await process.transport.close()


async def test_a_reference_to_nothing_is_a_bad_record(world: World) -> None:
    from gagar.records import LogRef

    await write(world, requests(4))
    [delivery] = [d for d in await read(world, REQUESTS) if d.key == "t-000000"]
    async with opened(world) as transport:
        references = LogReferences(transport, [REQUESTS])
        assert await references.read([delivery.ref], RolloutRequest) == [delivery.record]
        with pytest.raises(BadRecordError, match="expected its MessagePack form"):
            await references.read([delivery.ref], Trajectory)
        with pytest.raises(BadRecordError, match="expected a record, got none"):
            await references.read(
                [LogRef(topic="rollout-requests", partition=delivery.ref.partition, offset=999)], RolloutRequest
            )
        with pytest.raises(BadRecordError, match="expected a partition of"):
            await references.read([LogRef(topic="elsewhere", partition=0, offset=0)], DeadLetter)
        await references.close()


async def test_a_handler_that_is_abandoned_ends_before_its_effect_is_closed(world: World) -> None:
    class Tidy(Worker):
        steps: list[str]

        async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
            self.calls[delivery.key] += 1
            try:
                return await asyncio.Event().wait()  # type: ignore[return-value]
            finally:
                await asyncio.sleep(0.05)
                self.steps.append("handler ended")

        async def close(self) -> None:
            self.steps.append("closed")

    worker = Tidy()
    worker.steps = []
    await write(world, requests(2))
    async with Process(world, make_stage("effect"), worker) as process:
        await process.until(lambda: worker.calls.total() == 2)
    assert worker.steps == ["handler ended", "handler ended", "closed"]
