"""The in-memory log keeps the rules that the runtime relies on."""

import asyncio

import pytest

from gagar.errors import FencedError, UnavailableError
from gagar.stream.memory.group import MemoryGroup, MemoryMembership
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.transport import Committed, OutOfRangeError, Partition, Send
from tests.contract.world import TOPICS

AT = Partition("policy-versions", 0)
SEND = Send(topic="policy-versions", key=b"k", value=b"v")


async def test_an_open_transaction_hides_what_follows_it_and_markers_occupy_offsets() -> None:
    transport = MemoryTransport(MemoryLog(TOPICS))
    one, two = [await transport.start_producer(name, TOPICS) for name in ("one", "two")]
    reader = await transport.open_reader([AT])
    await reader.seek(AT, None)
    await one.begin()
    await two.begin()
    for producer in (one, two):
        await (await producer.send(SEND))
    await two.commit("g", {AT: Committed(offset=3)})
    assert not await reader.poll(0, 10)
    assert (await reader.ends())[AT] == 0
    await one.commit("g", {})
    assert [raw.offset for raw in await reader.poll(0, 10)] == [0, 1]
    assert reader.position(AT) == 4
    assert reader.is_caught_up(AT)


async def test_a_new_producer_aborts_and_fences_the_old_one() -> None:
    transport = MemoryTransport(MemoryLog(TOPICS))
    old = await transport.start_producer("id", TOPICS)
    await old.begin()
    await (await old.send(SEND))
    new = await transport.start_producer("id", TOPICS)
    with pytest.raises(FencedError):
        await old.commit("g", {AT: Committed(offset=1)})
    await new.begin()
    await (await new.send(SEND))
    await new.commit("g", {})
    reader = await transport.open_reader([AT])
    await reader.seek(AT, None)
    assert [raw.offset for raw in await reader.poll(0, 10)] == [2]
    assert not transport.log.group("g").offsets


async def test_a_commit_that_was_decided_when_its_process_died_is_visible_once_a_successor_has_started() -> None:
    log = MemoryLog(TOPICS)
    dying, living = MemoryTransport(log), MemoryTransport(log)
    producer = await dying.start_producer("id", TOPICS)
    await producer.begin()
    await (await producer.send(SEND))
    committing = asyncio.create_task(producer.commit("g", {AT: Committed(offset=1)}))
    while log.open["id"].decision is None:
        await asyncio.sleep(0)
    dying.kill()
    with pytest.raises(UnavailableError, match="got killed"):
        await committing
    reader = await living.open_reader([AT])
    await reader.seek(AT, None)
    assert not log.group("g").offsets
    assert (await reader.ends())[AT] == 0
    await living.start_producer("id", TOPICS)
    assert log.group("g").offsets == {AT: Committed(offset=1)}
    assert [raw.offset for raw in await reader.poll(0, 10)] == [0]


async def test_a_transaction_commits_without_a_batch_that_was_refused_and_its_producer_is_of_no_more_use() -> None:
    log = MemoryLog(TOPICS)
    producer = await MemoryTransport(log).start_producer("id", TOPICS)
    log.faults["answer"] = [UnavailableError("answer: expected one, got none")]
    await producer.begin()
    refused, written = await producer.send(SEND), await producer.send(SEND)
    with pytest.raises(UnavailableError):
        await refused
    assert (await written).offset == 0
    await producer.commit("g", {AT: Committed(offset=1)})
    assert log.group("g").offsets == {AT: Committed(offset=1)}
    with pytest.raises(AssertionError, match="after an error a producer is dead"):
        await producer.begin()


async def test_an_offset_that_is_gone_is_out_of_range() -> None:
    log = MemoryLog(TOPICS)
    for _ in range(5):
        log.append(SEND)
    log.truncate(AT, 3)
    reader = await MemoryTransport(log).open_reader([AT])
    await reader.seek(AT, 1)
    with pytest.raises(OutOfRangeError, match="expected an offset from 3 to 5"):
        await reader.poll(0, 10)
    await reader.seek(AT, None)
    assert [raw.offset for raw in await reader.poll(0, 10)] == [3, 4]


async def test_a_group_is_divided_evenly_and_keeps_what_it_can() -> None:
    class Recorder:
        numbers: frozenset[int] = frozenset()

        async def on_revoked(self) -> None: ...

        def on_assigned(self, numbers: frozenset[int], /) -> None:
            self.numbers = numbers

    class Process:
        is_dead = False
        member = ""

    group = MemoryGroup()
    owners = [Recorder() for _ in range(3)]
    members = [MemoryMembership(Process(), group, 4, owner) for owner in owners]
    group.add(members[0])
    assert await members[0].confirm() == {0, 1, 2, 3}
    for member in members[1:]:
        group.add(member)
        await member.confirm()
    shares = [owner.numbers for owner in owners]
    assert sorted(number for share in shares for number in share) == [0, 1, 2, 3]
    assert sorted(len(share) for share in shares) == [1, 1, 2]
    await members[1].close()
    await members[2].close()
    while owners[0].numbers != {0, 1, 2, 3}:
        await members[0].confirm()
