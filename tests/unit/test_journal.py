"""The journal over a log that fails under it: nothing that was read is lost, what retention took counts once."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from consumers.learner import client as module
from consumers.learner.client import JournalClient
from gagar.errors import UnavailableError
from gagar.stream.journal import LogJournal
from gagar.stream.memory.transport import MemoryReader, MemoryTransport
from gagar.stream.spec import Topic
from gagar.stream.transport import Partition, RawRecord, Send, TopicIdentity
from gagar.training.background import Background
from tests.builders import make_request
from tests.contract.world import DEAD_LETTERS, FAST, OUTCOMES, REQUESTS, MemoryWorld, make_stage, write

STAGE = make_stage("learner", outputs=(OUTCOMES,), holds_groups=True, name="reader")
AT = Partition(REQUESTS.name, 0)


class HangingTransport(MemoryTransport):
    """The first answer of its readers comes late, if ever: the log has given the records away already."""

    is_hanging = True

    async def open_reader(self, partitions: Any, /, *, is_single: bool = False) -> MemoryReader:
        reader = await super().open_reader(partitions)
        inner = reader.poll

        async def poll(timeout_s: float, max_records: int, /) -> list[RawRecord]:
            records = await inner(timeout_s, max_records)
            if records and self.is_hanging:
                self.is_hanging = False
                await asyncio.sleep(60)
            return records

        reader.poll = poll  # type: ignore[method-assign]
        return reader


class RestartingTransport(MemoryTransport):
    """Tells nothing of its topics while the cluster starts."""

    num_unknown = 0

    async def describe(self, topics: Sequence[Topic], /) -> dict[str, TopicIdentity]:
        if self.num_unknown:
            self.num_unknown -= 1
            return {}
        return await super().describe(topics)


async def opened_journal(transport: MemoryTransport) -> LogJournal:
    journal = LogJournal(STAGE, transport, DEAD_LETTERS, FAST)
    await journal.open()
    await journal.seek({})
    return journal


def test_a_poll_that_takes_too_long_ends_the_learner_since_it_has_taken_records_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLACK_S", 0.05)
    world, background = MemoryWorld(num_partitions=1), Background("test")
    journal = LogJournal(STAGE, HangingTransport(world.log), DEAD_LETTERS, FAST)
    client = JournalClient(journal, background)
    try:
        background.call(write(world, [make_request()]), timeout_s=5.0, what="write")
        client.connect()
        client.take_over()
        client.seek({})
        with pytest.raises(UnavailableError, match=r"learner journal poll: expected an answer within 0\.05 s, got none"):
            client.poll(0.0)
        client.close()
    finally:
        background.close()


def test_a_dead_letter_that_cannot_be_written_ends_the_learner() -> None:
    """Records before it in the same poll have been read and not delivered."""
    world, background = MemoryWorld(num_partitions=1), Background("test")
    journal = LogJournal(STAGE, world.transport(), DEAD_LETTERS, FAST)
    client = JournalClient(journal, background)
    bad = Send(topic=REQUESTS.name, key=b"t-000002", value=b"\xc1")
    try:
        background.call(write(world, [make_request(), bad]), timeout_s=5.0, what="write")
        client.connect()
        client.take_over()
        client.seek({})
        world.log.faults["commit"] = [UnavailableError("broker: expected an answer, got none")]
        with pytest.raises(UnavailableError, match="broker: expected an answer, got none"):
            client.poll(0.0)
        client.close()
    finally:
        background.close()


async def test_a_log_out_of_reach_interrupts_a_journal_and_loses_nothing() -> None:
    world = MemoryWorld(num_partitions=1)
    await write(world, [make_request(sample_index=index) for index in range(3)])
    journal = await opened_journal(world.transport())
    world.log.faults["poll"] = [UnavailableError("poll: expected an answer, got none") for _ in range(2)]
    assert [await journal.poll(0.0) for _ in range(2)] == [[], []]
    assert [delivery.record.sample_index for delivery in await journal.poll(0.0)] == [0, 1, 2]
    await journal.close()


async def test_records_that_retention_took_count_once_though_the_reader_is_lost_afterwards() -> None:
    world = MemoryWorld(num_partitions=1)
    await write(world, [make_request(sample_index=index) for index in range(3)])
    journal = await opened_journal(world.transport())
    world.log.truncate(AT, 2)
    assert await journal.poll(0.0) == []
    world.log.faults["poll"] = [UnavailableError("poll: expected an answer, got none")]
    found = [await journal.poll(0.0) for _ in range(3)]
    assert [delivery.record.sample_index for polled in found for delivery in polled] == [2]
    assert journal.counters.missing == 2
    await journal.close()


async def test_a_cluster_that_tells_nothing_of_a_topic_yet_does_not_leave_a_journal_without_partitions() -> None:
    world = MemoryWorld(num_partitions=1)
    transport = RestartingTransport(world.log)
    await write(world, [make_request()])
    journal = LogJournal(STAGE, transport, DEAD_LETTERS, FAST)
    transport.num_unknown = 1
    with pytest.raises(UnavailableError, match="topic rollout-requests: expected it to exist, got nothing"):
        await journal.open()
    journal = await opened_journal(transport)
    world.log.faults["poll"] = [UnavailableError("poll: expected an answer, got none")]
    assert await journal.poll(0.0) == []
    transport.num_unknown = 1  # a reader that is opened anew goes on where it was and asks nothing
    assert len(await journal.poll(0.0)) == 1
    await journal.close()
