"""The journal: positions kept by the caller, outputs in transactions, one writer at a time."""

import asyncio

import pytest

from gagar.errors import FencedError, GagarError
from gagar.records import Outcome, PolicyVersion
from gagar.stream.handlers import Tombstone
from gagar.stream.journal import LogJournal
from gagar.stream.transport import Send
from tests.builders import make_request
from tests.contract.world import DEAD_LETTERS, OUTCOMES, REQUESTS, VERSIONS, World, committed, make_stage, read, write

STAGE = make_stage("learner", outputs=(OUTCOMES, VERSIONS), references=(REQUESTS,), holds_groups=True, name="reader")


def version(number: int) -> PolicyVersion:
    return PolicyVersion(run_id="r", version=number, step=number, location="x", checksum="y")


def outcome(group_id: str) -> Outcome:
    return Outcome(group_id=group_id, task_id="", purpose="training", kind="trained", step=1)


async def read_versions(journal: LogJournal) -> list[int]:
    found: list[PolicyVersion] = []
    await journal.read_table(VERSIONS, found.append)
    return [version.version for version in found]


async def read_some(journal: LogJournal, count: int) -> tuple[list[str], dict[int, int]]:
    """Keys of at least `count` deliveries, and the positions after them."""
    keys: list[str] = []
    positions: dict[int, int] = {}
    async with asyncio.timeout(20):
        while len(keys) < count:
            for delivery in await journal.poll(0.2):
                keys.append(delivery.key)
                positions[delivery.ref.partition] = delivery.ref.offset + 1
    return keys, positions


async def test_a_journal_reads_from_positions_and_commits_outputs_with_offsets(world: World) -> None:
    await write(world, [make_request(f"t-{number:06d}") for number in range(10)])
    journal = LogJournal(STAGE, world.transport(), DEAD_LETTERS)
    await journal.open()
    await journal.seek({})
    keys, positions = await read_some(journal, 10)
    await journal.commit([outcome(keys[0]), version(1), version(2)], positions)
    await journal.commit([Tombstone(of=version(1))], positions)
    [first] = await journal.references.read([(await read(world, REQUESTS))[0].ref], REQUESTS.record)
    assert first.group_id in keys  # type: ignore[attr-defined]
    assert await read_versions(journal) == [1, 2]
    await journal.close()
    offsets = {at.number: entry.offset for at, entry in (await committed(world, STAGE)).items()}
    assert {number: offset for number, offset in offsets.items() if offset} == positions
    assert [d.key for d in await read(world, OUTCOMES)] == [keys[0]]


async def test_a_journal_goes_back_to_where_it_is_told(world: World) -> None:
    await write(world, [make_request(f"t-{number:06d}") for number in range(10)])
    journal = LogJournal(STAGE, world.transport(), DEAD_LETTERS)
    await journal.open()
    await journal.seek({})
    everything, positions = await read_some(journal, 10)
    await journal.seek(dict.fromkeys(positions, 1))
    again, _ = await read_some(journal, 10 - len(positions))
    assert set(again) < set(everything)
    assert len(again) == 10 - len(positions)
    await journal.close()


async def test_a_bad_record_is_dead_lettered_once_however_often_it_is_read(world: World) -> None:
    await write(world, [make_request("t-000001"), Send(topic="rollout-requests", key=b"t-000002", value=b"\xc1")])
    for _ in range(2):
        journal = LogJournal(STAGE, world.transport(), DEAD_LETTERS)
        await journal.open()
        await journal.seek({})
        await read_some(journal, 1)
        for _ in range(3):
            await journal.poll(0.1)
        await journal.close()
    assert [d.record.key for d in await read(world, DEAD_LETTERS)] == [b"t-000002"]
    assert [(d.key, d.record.reason) for d in await read(world, OUTCOMES)] == [("t-000002", "dead_letter")]


async def test_a_journal_tells_the_id_of_its_input_and_another_one_when_that_was_made_anew(world: World) -> None:
    ids = []
    for _ in range(2):
        journal = LogJournal(STAGE, world.transport(), DEAD_LETTERS)
        await journal.connect()
        ids.append(journal.input_id)
        await journal.close()
        await world.remake(REQUESTS)
    assert ids[0] != ids[1]
    assert all(ids)


async def test_a_successor_fences_a_journal(world: World) -> None:
    one, two = (LogJournal(STAGE, world.transport(), DEAD_LETTERS) for _ in range(2))
    await one.open()
    await one.commit([version(1)], {})
    await two.open()
    with pytest.raises(FencedError):
        await one.commit([version(2)], {})
    with pytest.raises(GagarError, match="expected a producer, got none"):
        await one.commit([version(3)], {})
    await two.commit([version(4)], {})
    assert await read_versions(two) == [1, 4]
    await one.close()
    await two.close()
