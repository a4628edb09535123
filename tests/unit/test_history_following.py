"""Following ends with the thing that is followed, and tells each record once."""

import asyncio
from typing import Any

from gagar.history.following import follow_group, follow_versions, line_of
from gagar.history.group import GroupHistory
from gagar.records import DeadLetter, LineageEntry, PolicyVersion
from gagar.stream.handlers import Delivery
from tests.audit_runs import way_of
from tests.builders import make_outcome, make_ref, make_request, make_verdict, make_version
from tests.contract.world import make_trajectory
from tests.logs import append, empty_log, lay, transport_of
from topology.topics import TOPICS


async def test_a_group_is_followed_until_an_outcome_of_the_surviving_lineage_comes() -> None:
    log, told = empty_log(), list[Delivery[Any]]()
    lay(log, [make_version(0), *way_of("t-000001")])
    append(log, make_request(group_size=1))
    following = asyncio.create_task(follow_group(transport_of(log), TOPICS, "t-000000", told.append))
    while not told:
        await asyncio.sleep(0)
    trajectory = append(log, make_trajectory(make_request(group_size=1)))
    append(log, make_verdict(trajectory=trajectory, tokens=None))
    append(log, make_outcome("t-000001", run_id="a", step=1))
    append(log, make_outcome(run_id="b", step=1))
    while len(told) < 4:
        await asyncio.sleep(0)
    assert not following.done()
    append(log, make_version(1, "b"))
    history = await asyncio.wait_for(following, 10)
    assert history.reached == "trained at step 1"
    assert sorted(delivery.ref.topic for delivery in told) == ["outcomes", "rollout-requests", "trajectories", "verdicts"]
    assert history.num_records == 4


async def test_a_group_that_has_ended_or_is_not_there_is_not_waited_for() -> None:
    log, told = empty_log(), list[Delivery[Any]]()
    lay(log, [make_version(0), *way_of("t-000000"), make_version(1)])
    history: GroupHistory = await asyncio.wait_for(follow_group(transport_of(log), TOPICS, "t-000000", told.append), 10)
    assert len(told) == history.num_records
    nobody = await asyncio.wait_for(follow_group(transport_of(log), TOPICS, "t-9", told.append), 10)
    assert nobody.num_records == 0


async def test_an_attempt_is_followed_until_its_verdict() -> None:
    log, told = empty_log(), list[Delivery[Any]]()
    for sample in range(2):
        append(log, make_request(sample_index=sample, group_size=2))
    following = asyncio.create_task(follow_group(transport_of(log), TOPICS, "t-000000", told.append, 1))
    while len(told) < 2:
        await asyncio.sleep(0)
    append(log, make_verdict(sample_index=0, tokens=None))
    while len(told) < 3:
        await asyncio.sleep(0)
    assert not following.done()
    append(log, make_verdict(sample_index=1, tokens=None))
    history = await asyncio.wait_for(following, 10)
    assert history.attempts[1].judged is not None
    assert not history.outcomes


async def test_versions_are_followed_to_the_one_awaited_or_to_the_planned_end() -> None:
    log = empty_log()
    for number in range(3):
        append(log, make_version(number))
    told: list[Delivery[PolicyVersion]] = []
    await asyncio.wait_for(follow_versions(transport_of(log), TOPICS, told.append, 1), 10)
    assert [delivery.record.step for delivery in told] == [0, 1, 2]
    following = asyncio.create_task(follow_versions(transport_of(log), TOPICS, told.append, None))
    while len(told) < 6:
        await asyncio.sleep(0)
    assert not following.done()
    append(log, make_version(3, is_last=True))
    await asyncio.wait_for(following, 10)
    assert told[-1].record.is_last


async def test_a_step_that_was_superseded_is_waited_for_until_it_is_made_again() -> None:
    log = empty_log()
    for version in (
        *(make_version(step) for step in range(4)),
        make_version(1, "b", lineage=[LineageEntry(run_id="a", last_step=1)]),
    ):
        append(log, version)
    told: list[Delivery[PolicyVersion]] = []
    following = asyncio.create_task(follow_versions(transport_of(log), TOPICS, told.append, 3))
    while len(told) < 5:
        await asyncio.sleep(0)
    for late in (make_version(3, "a", version=9), make_version(2, "b")):
        append(log, late)
    while len(told) < 7:
        await asyncio.sleep(0)
    assert not following.done()
    append(log, make_version(3, "b"))
    await asyncio.wait_for(following, 10)


def test_a_record_is_told_in_a_line() -> None:
    def line(record: Any) -> str:
        return line_of(Delivery(ref=make_ref("any", 3), key="", record=record, at=1.0))

    assert line(make_verdict(reason="x\ny")) == "1970-01-01 00:00:01 UTC any[0]@3 sample 0: passed x"
    assert line(make_outcome()).endswith("any[0]@3 trained at step 1")
    assert line(make_version(4)).endswith("version 4, step 4 of run a")
    assert line(make_request()).endswith("sample 0:")
    letter = DeadLetter(stage="verifier", source=make_ref("any", 0), error="bad\x1b", key=b"", value=b"")
    assert line(letter).endswith("verifier: bad\\x1b")
