"""Dead letters are listed, shown and retried: once, for the stage that had rejected the record, and only while that helps."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from gagar.audit.fold import Audit
from gagar.errors import BadRecordError, UnavailableError
from gagar.groups.gathering import Gather
from gagar.history.letters import Retried, find_letter, list_letters, retry_letters
from gagar.records import DeadLetter, LogRef, Trajectory, Verdict, encode
from gagar.report.progress import Progress
from gagar.stream.handlers import Delivery, Effect
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.readers.scans import scan_transport
from gagar.stream.retries import HEADER, RetryMark, mark_in, marked
from gagar.stream.routing import key_of
from gagar.stream.spec import Stage
from gagar.stream.transport import Send
from tests.builders import make_group, make_outcome, make_ref, make_request
from tests.contract.world import FAST, Process, make_trajectory
from tests.logs import NUM_PARTITIONS, append, empty_log, transport_of
from topology.stages import GATHERER, ROLLOUT_WORKER, STAGES, VERIFIER
from topology.topics import DEAD_LETTERS, TOPICS, VERDICTS


class LogWorld:
    """A world of `tests.contract.world` with all topics of a run."""

    def __init__(self) -> None:
        self.log = empty_log()

    def transport(self, member: str = "") -> MemoryTransport:
        return MemoryTransport(self.log, member)


class Judge(Effect):
    """A verifier that rejects everything until its cause is gone."""

    def __init__(self, *, is_mended: bool = False) -> None:
        self.is_mended = is_mended
        self.seen: list[LogRef] = []

    async def handle(self, delivery: Delivery[Trajectory]) -> Sequence[Verdict]:
        self.seen.append(delivery.ref)
        if not self.is_mended:
            raise BadRecordError(f"{delivery.ref}: expected a task of [tasks], got none")
        trajectory = delivery.record
        return [
            Verdict(
                group_id=trajectory.group_id,
                sample_index=trajectory.sample_index,
                task_id=trajectory.task_id,
                purpose=trajectory.purpose,
                attempt=trajectory.attempt,
                trajectory=delivery.ref,
                status="passed",
            )
        ]


def rejected(log: MemoryLog, stage: str = "verifier", record: Any = None, headers: Sequence[tuple[str, bytes]] = ()) -> LogRef:
    """A record and its dead letter; the answer is where that lies."""
    record = make_trajectory(make_request(group_size=1)) if record is None else record
    source = append(log, record)
    key, value = key_of(record).encode(), encode(record)
    letter = DeadLetter(stage=stage, source=source, error=f"{source}: bad", key=key, value=value, headers=list(headers))
    return append(log, letter)


async def retry(log: MemoryLog, *refs: LogRef, stages: Sequence[Stage] = STAGES) -> list[Retried]:
    async with aclosing(retry_letters(transport_of(log), TOPICS, stages, refs)) as found:
        return [retried async for retried in found]


async def read(log: MemoryLog, topic: Any) -> list[Delivery[Any]]:
    return [delivery async for delivery in scan_transport(transport_of(log), [topic])]


def values_on(log: MemoryLog, topic: str) -> list[Any]:
    """Raw records of a topic."""
    return [raw for at in sorted(log.partitions) if at.topic == topic for raw in log.visible(at, 0, 10**6)[0]]


async def test_a_retry_is_a_copy_with_a_mark_and_the_letter_says_so() -> None:
    log = empty_log()
    append(log, make_request(group_size=1))
    letter = rejected(log, headers=[("origin", b"\xfe")])
    [retried] = await retry(log, letter)
    assert retried.refusal == ""
    original, copy = values_on(log, "trajectories")
    assert (copy.key, copy.value) == (original.key, original.value)
    assert copy.ref == retried.retried_as
    assert copy.headers[0] == ("origin", b"\xfe")
    assert mark_in(copy.headers) == RetryMark(stage="verifier", source=original.ref, letter=letter)
    assert (await find_letter(transport_of(log), TOPICS, letter)).retried_as == copy.ref
    [line] = await list_letters(transport_of(log), TOPICS)
    assert line.retried_as == copy.ref


async def test_a_second_retry_is_refused_and_writes_nothing() -> None:
    log = empty_log()
    letter = rejected(log)
    [first] = await retry(log, letter)
    [second] = await retry(log, letter)
    assert second.retried_as is None
    assert f"was retried already, as {first.retried_as}" in second.refusal
    assert len(values_on(log, "trajectories")) == 2
    [again] = await retry(log, letter, letter)
    assert again.refusal


async def test_of_two_who_retry_at_the_same_time_one_writes() -> None:
    for num_moments in range(40):
        log = empty_log()
        letter = rejected(log)

        async def late(moments: int, log: MemoryLog, letter: LogRef) -> list[Retried]:
            for _ in range(moments):
                await asyncio.sleep(0)
            return await retry(log, letter)

        await asyncio.gather(late(0, log, letter), late(num_moments, log, letter), return_exceptions=True)
        await retry(log, letter)
        assert len(values_on(log, "trajectories")) == 2, num_moments


@pytest.mark.parametrize("fault", ["begin", "send", "answer", "commit", "lost answer"])
async def test_whoever_fails_in_between_leaves_all_or_nothing(fault: str) -> None:
    log = empty_log()
    letter = rejected(log)
    log.faults[fault] = [UnavailableError("gone")]
    with pytest.raises(UnavailableError):
        await retry(log, letter)
    await retry(log, letter)
    assert len(values_on(log, "trajectories")) == 2
    assert len([raw for raw in await read(log, DEAD_LETTERS) if raw.record.retried_as]) == 1


async def test_a_process_that_dies_at_any_moment_of_a_retry_leaves_all_or_nothing() -> None:
    were_done = set()
    for num_moments in range(120):
        log = empty_log()
        letter = rejected(log)
        transport = transport_of(log)
        found = retry_letters(transport, TOPICS, STAGES, [letter])
        dying = asyncio.create_task(anext(found))
        for _ in range(num_moments):
            await asyncio.sleep(0)
        were_done.add(dying.done())
        transport.kill()
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        await found.aclose()
        await retry(log, letter)
        assert len(await read(log, DEAD_LETTERS)) == 2, num_moments
        assert len(values_on(log, "trajectories")) == 2, num_moments
    assert were_done == {False, True}


async def test_the_stage_that_rejected_a_record_gets_it_again_in_its_old_place() -> None:
    world = LogWorld()
    append(world.log, make_request(group_size=1))
    source = append(world.log, make_trajectory(make_request(group_size=1)))
    async with Process(world, VERIFIER, Judge(), FAST) as process:  # type: ignore[arg-type]
        await process.until_finished(1)
    [line] = await list_letters(transport_of(world.log), TOPICS)
    [retried] = await retry(world.log, line.ref)
    assert retried.retried_as is not None
    judge = Judge(is_mended=True)
    async with Process(world, VERIFIER, judge, FAST) as process:  # type: ignore[arg-type]
        await process.until_finished(1)
    assert judge.seen == [source]
    [verdict] = await read(world.log, VERDICTS)
    assert verdict.record.trajectory == source


async def test_a_retry_that_is_rejected_again_can_be_retried_and_still_stands_for_the_first_record() -> None:
    world = LogWorld()
    append(world.log, make_request(group_size=1))
    source = append(world.log, make_trajectory(make_request(group_size=1)))
    async with Process(world, VERIFIER, Judge(), FAST) as process:  # type: ignore[arg-type]
        await process.until_finished(1)
    [first] = await list_letters(transport_of(world.log), TOPICS)
    await retry(world.log, first.ref)
    async with Process(world, VERIFIER, Judge(), FAST) as process:  # type: ignore[arg-type]
        await process.until_finished(1)
    [_, second] = await list_letters(transport_of(world.log), TOPICS)
    assert second.source == source
    [retried] = await retry(world.log, second.ref)
    assert retried.refusal == ""
    copy = next(raw for raw in values_on(world.log, "trajectories") if raw.ref == retried.retried_as)
    assert mark_in(copy.headers) == RetryMark(stage="verifier", source=source, letter=second.ref)
    assert [name for name, _ in copy.headers].count(HEADER) == 1


async def test_other_stages_that_read_the_topic_pass_a_retry_over() -> None:
    world = LogWorld()
    requests = [make_request(sample_index=sample, group_size=2) for sample in range(2)]
    append(world.log, requests[0])
    letter = rejected(world.log, ROLLOUT_WORKER.name, requests[1])
    [retried] = await retry(world.log, letter)
    assert retried.retried_as is not None
    gather = Gather(0.0)
    async with Process(world, GATHERER, gather, FAST) as process:  # type: ignore[arg-type]
        await process.until(lambda: process.runtime.counters.late >= 1)
    assert gather.num_duplicates == 0


async def test_a_group_that_has_closed_or_ended_keeps_its_end() -> None:
    log = empty_log()
    ended = rejected(log)
    append(log, make_outcome("t-000000", kind="dropped", reason="lost"))
    gathered = rejected(log, record=make_trajectory(make_request("t-000001", group_size=1)))
    append(log, make_group([None], "t-000001"))
    found = await retry(log, ended, gathered)
    assert all("a group that has closed" in retried.refusal for retried in found)
    assert len(values_on(log, "trajectories")) == 2


async def test_a_letter_of_a_stage_that_holds_groups_has_ended_its_group() -> None:
    log = empty_log()
    letter = rejected(log, "grader", make_group([None]))
    [retried] = await retry(log, letter)
    assert "has ended its group: grader holds whole groups, and each group ends once" in retried.refusal


async def test_what_is_no_input_has_no_key_or_lies_elsewhere_is_refused() -> None:
    log = empty_log()
    strange = rejected(log, "somebody")
    keyless = append(log, DeadLetter(stage="verifier", source=make_ref("trajectories", 0), error="", key=b"", value=b""))
    number = transport_of(log).number_of(b"t-000000", NUM_PARTITIONS)
    foreign = make_ref("trajectories", 0, (number + 1) % NUM_PARTITIONS)
    moved = append(log, DeadLetter(stage="verifier", source=foreign, error="", key=b"t-000000", value=b""))
    refusals = {retried.letter: retried.refusal for retried in await retry(log, strange, keyless, moved)}
    assert "is no input of a stage: somebody had it" in refusals[strange]
    assert "has no key, and so no group" in refusals[keyless]
    assert f"came from another partition, {foreign}" in refusals[moved]
    assert len(values_on(log, "trajectories")) == 1


async def test_the_mark_of_a_retry_is_refused_and_the_others_go_on() -> None:
    log = empty_log()
    letter = rejected(log)
    await retry(log, letter)
    other = rejected(log)
    mark = next(raw.ref for raw in values_on(log, "dead-letters") if raw.ref not in (letter, other))
    refused, retried = await retry(log, mark, other)
    assert f"{mark}: expected a dead letter, got the mark that {letter} was retried" in refused.refusal
    assert retried.retried_as is not None


async def test_scans_for_audit_and_report_leave_retries_and_marks_out_of_their_counts() -> None:
    log = empty_log()
    request = make_request(group_size=1)
    trajectory = make_trajectory(request, request=append(log, request))
    await retry(log, rejected(log, record=trajectory))
    audit, progress = Audit(), Progress()
    for topic in TOPICS:
        for delivery in await read(log, topic):
            audit.apply(delivery)
            progress.apply(delivery)
    result = audit.result(is_in_flight_allowed=True)
    assert result.findings == []
    assert result.num_dead_letters == progress.snapshot().num_dead_letters == 1
    assert progress.snapshot().records["trajectories"] == 1


def test_a_retried_request_of_a_group_that_is_not_open_is_late() -> None:
    gather, request = Gather(0.0), make_request()
    ordinary = Delivery(ref=make_ref("rollout-requests", 0), key=request.group_id, record=request, at=0.0)
    retried = Delivery(ref=make_ref("rollout-requests", 0), key=request.group_id, record=request, at=0.0, is_retry=True)
    assert not gather.is_late(ordinary, lambda ref: True)
    assert gather.is_late(retried, lambda ref: False)


def test_a_header_of_another_form_is_no_mark() -> None:
    assert mark_in([(HEADER, b"{")]) is None
    assert mark_in([("other", b"")]) is None
    mark = RetryMark(stage="verifier", source=make_ref("trajectories", 1), letter=make_ref("dead-letters", 2))
    assert marked([(HEADER, b"old"), ("a", b"1")], mark)[0] == ("a", b"1")


async def test_letters_are_listed_by_stage_in_the_order_of_time() -> None:
    log = empty_log()
    late = append(
        log, DeadLetter(stage="verifier", source=make_ref("trajectories", 1), error="e", key=b"b", value=b"12"), at=9.0
    )
    early = append(
        log, DeadLetter(stage="verifier", source=make_ref("trajectories", 0), error="e", key=b"a", value=b""), at=5.0
    )
    append(log, DeadLetter(stage="grader", source=make_ref("groups", 0), error="e", key=b"a", value=b""), at=6.0)
    lines = await list_letters(transport_of(log), TOPICS, "verifier")
    assert [line.ref for line in lines] == [early, late]
    assert [line.num_bytes for line in lines] == [0, 2]


async def test_a_letter_that_is_not_there_is_told() -> None:
    log = empty_log()
    log.append(Send(topic="dead-letters", key=b"a", value=b"\xc1"), at=1.0)
    at = next(raw.ref for raw in values_on(log, "dead-letters"))
    with pytest.raises(BadRecordError, match="DeadLetter: expected its MessagePack form"):
        await find_letter(transport_of(log), TOPICS, at)
