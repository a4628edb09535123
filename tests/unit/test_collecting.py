"""Everything of a group is found by its key and by reference, and nothing of another."""

from collections import Counter
from collections.abc import Sequence

import pytest

from gagar.errors import UnavailableError
from gagar.history.collecting import CLOCK_SKEW_S, LATE_S, Collector
from gagar.records import (
    DeadLetter,
    Group,
    LogRef,
    RolloutRequest,
    Trajectory,
    TrajectoryTokens,
    Verdict,
)
from gagar.stream.memory.transport import MemoryLog, MemoryReader, MemoryTransport
from gagar.stream.transport import Partition, RawRecord, Send
from tests.audit_runs import make_run, way_of
from tests.builders import make_ref, make_request, make_verdict
from tests.contract.world import make_trajectory
from tests.logs import NUM_PARTITIONS, append, empty_log, lay, transport_of
from topology.topics import TOPICS


async def collected(log: MemoryLog, *group_ids: str, with_tokens: bool = True) -> tuple[list[RawRecord], list[LogRef]]:
    collector = Collector(transport_of(log), TOPICS, group_ids, with_tokens=with_tokens)
    return [raw async for raw in collector.records()], collector.missing


def everything(log: MemoryLog, *group_ids: str) -> set[LogRef]:
    """Where the records with these keys lie."""
    keys = {group_id.encode() for group_id in group_ids}
    found = [raw for at in log.partitions for raw in log.visible(at, log.partitions[at].start, 10**6)[0]]
    return {raw.ref for raw in found if raw.key in keys}


async def test_all_records_of_a_group_are_found_once_and_none_of_another() -> None:
    log = empty_log()
    lay(log, make_run())
    raws, missing = await collected(log, "t-000001")
    assert [raw.ref for raw in raws] == list(dict.fromkeys(raw.ref for raw in raws))
    assert {raw.ref for raw in raws} == everything(log, "t-000001")
    assert missing == []
    counts = {"rollout-requests": 4, "verdicts": 4, "groups": 1, "graded-groups": 1, "advantages": 1, "outcomes": 1}
    assert Counter(raw.at.topic for raw in raws) == counts | {"trajectories": 4, "trajectory-tokens": 4}


async def test_many_groups_in_several_partitions_are_found_in_one_go() -> None:
    log, ids = empty_log(), [f"t-{i:06d}" for i in range(20)]
    lay(log, [record for group_id in ids for record in way_of(group_id)])
    raws, _ = await collected(log, *ids[3:12], "t-999999")
    assert {raw.ref for raw in raws} == everything(log, *ids[3:12])
    assert {raw.at.number for raw in raws} == set(range(NUM_PARTITIONS))


async def test_records_are_as_they_lie_there() -> None:
    log = empty_log()
    append(log, make_request(group_size=1), at=77.0, headers=[("a", b"\xff")])
    [raw], _ = await collected(log, "t-000000")
    assert (raw.key, raw.time, list(raw.headers)) == (b"t-000000", 77.0, [("a", b"\xff")])


async def test_of_a_group_that_is_not_there_nothing_is_found() -> None:
    log = empty_log()
    lay(log, make_run())
    assert await collected(log, "t-000077") == ([], [])


async def test_token_arrays_stay_where_they_are_if_nobody_wants_them() -> None:
    log = empty_log()
    lay(log, make_run())
    raws, _ = await collected(log, "t-000001", with_tokens=False)
    assert "trajectory-tokens" not in {raw.at.topic for raw in raws}


async def test_a_trajectory_without_a_verdict_is_found_between_its_request_and_its_deadline() -> None:
    log = empty_log()
    request = make_request(group_size=2, deadline_s=600.0)
    for sample in range(2):
        append(log, make_request(sample_index=sample, group_size=2, deadline_s=600.0), at=1000.0)
    early = append(log, make_trajectory(request), at=1000.0 - CLOCK_SKEW_S - 1)
    ref = append(log, make_trajectory(request), at=1500.0)
    late = append(log, make_trajectory(request), at=1600.0 + CLOCK_SKEW_S + LATE_S + 1)
    raws, _ = await collected(log, "t-000000")
    found = {raw.ref for raw in raws}
    assert ref in found
    assert not {early, late} & found


async def test_what_retention_has_taken_is_named_and_the_rest_is_found() -> None:
    log = empty_log()
    lay(log, way_of("t-000000"))
    number = transport_of(log).number_of(b"t-000000", NUM_PARTITIONS)
    log.truncate(Partition("trajectory-tokens", number), 4)
    log.truncate(Partition("trajectories", number), 1)
    raws, missing = await collected(log, "t-000000")
    assert missing == [LogRef(topic="trajectories", partition=number, offset=0)] + [
        LogRef(topic="trajectory-tokens", partition=number, offset=offset) for offset in range(4)
    ]
    assert len([raw for raw in raws if raw.at.topic == "trajectories"]) == 3


async def test_a_reference_that_leads_nowhere_is_missing_at_once() -> None:
    log = empty_log()
    append(log, make_request(group_size=1))
    beyond, elsewhere = make_ref("trajectories", 7), make_ref("trajectories", 0, partition=99)
    append(log, make_verdict(trajectory=beyond, tokens=None))
    append(log, make_verdict(trajectory=elsewhere, tokens=None))
    _, missing = await collected(log, "t-000000")
    assert missing == [beyond, elsewhere]


async def test_a_record_that_nobody_can_read_is_found_by_its_key_and_by_its_dead_letter() -> None:
    log = empty_log()
    append(log, make_request(group_size=1))
    bad = log.append(Send(topic="trajectories", key=b"t-000000", value=b"\xc1"), at=1001.0)
    worse = log.append(Send(topic="verdicts", key=b"t-000000", value=b"?"), at=1001.0)
    letter = DeadLetter(stage="verifier", source=bad, error="bad", key=b"t-000000", value=b"\xc1")
    told = append(log, letter, at=1002.0)
    raws, missing = await collected(log, "t-000000")
    assert {bad, worse, told} < {raw.ref for raw in raws}
    assert len(raws) == 4
    assert missing == []


async def test_only_the_partition_of_the_group_is_read() -> None:
    log = empty_log()
    lay(log, make_run())
    read: list[Partition] = []

    class WatchingReader(MemoryReader):
        async def seek(self, at: Partition, offset: int | None, /) -> None:
            read.append(at)
            await super().seek(at, offset)

    class WatchingTransport(MemoryTransport):
        async def open_reader(self, partitions: Sequence[Partition], /, *, is_single: bool = False) -> MemoryReader:
            return WatchingReader(self, partitions)

    async for _ in Collector(WatchingTransport(log), TOPICS, ["t-000001"]).records():
        pass
    assert len({at.number for at in read}) == 1
    assert {at.topic for at in read} == {topic.name for topic in TOPICS if topic.is_grouped}


async def test_a_run_without_topics_is_told() -> None:
    with pytest.raises(UnavailableError, match="topic rollout-requests: expected partitions, got none"):
        await collected(MemoryLog([]), "t-000000")


async def test_a_group_that_closes_while_its_verdicts_are_read_is_not_found_without_the_last_of_them() -> None:
    log, found = empty_log(), []
    way = way_of("t-000000")
    last = [record for record in way if isinstance(record, Verdict) and record.sample_index == 3]
    lay(log, [record for record in way if isinstance(record, RolloutRequest | TrajectoryTokens | Trajectory | Verdict)][:-1])
    async for raw in Collector(transport_of(log), TOPICS, ["t-000000"]).records():
        found.append(raw.at.topic)
        if found[-1] == "verdicts" and last:
            append(log, last.pop(), 1001.0)
            append(log, next(record for record in way if isinstance(record, Group)), 1001.0)
    assert Counter(found) == {"rollout-requests": 4, "verdicts": 3, "trajectories": 4, "trajectory-tokens": 4}


async def test_a_trajectory_that_was_doubled_is_found_by_who_is_thorough() -> None:
    log = empty_log()
    way = way_of("t-000000")
    lay(log, [*way, next(record for record in way if isinstance(record, Trajectory))])
    for is_thorough in (False, True):
        collector = Collector(transport_of(log), TOPICS, ["t-000000"], is_thorough=is_thorough)
        found = [raw async for raw in collector.records() if raw.at.topic == "trajectories"]
        assert len(found) == 4 + is_thorough
