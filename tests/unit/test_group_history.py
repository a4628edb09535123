"""The history of a group: what the log says of each attempt, how the group ended, and what is not there any more."""

from msgspec.structs import replace
from rich.console import Console

from gagar.history.group import GroupHistory, read_group
from gagar.history.group_view import as_object, attempt_object, render_attempt, render_group
from gagar.records import DeadLetter, LineageEntry, Message, PolicyVersion, Verdict
from gagar.stream.memory.transport import MemoryLog
from gagar.stream.transport import Partition, Send
from tests.audit_runs import make_run, way_of
from tests.builders import make_delivery, make_outcome, make_request, make_verdict, make_version
from tests.contract.world import make_trajectory
from tests.logs import NUM_PARTITIONS, append, empty_log, lay, transport_of
from topology.topics import TOPICS


async def history_of(log: MemoryLog, group_id: str = "t-000000") -> GroupHistory:
    return await read_group(transport_of(log), TOPICS, group_id)


def text_of(history: GroupHistory, sample: int | None = None) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render_group(history) if sample is None else render_attempt(history, history.attempts[sample]))
    return capture.get()


def lost_verdicts(log: MemoryLog) -> None:
    """Retention takes every verdict."""
    for number in range(NUM_PARTITIONS):
        at = Partition("verdicts", number)
        log.truncate(at, log.partitions[at].end)


async def test_a_trained_group_is_told_from_its_request_to_its_step() -> None:
    log = empty_log()
    lay(log, make_run())
    history = await history_of(log)
    assert history.reached == "trained at step 1"
    assert [attempt.sample_index for attempt in history.attempts] == [0, 1, 2, 3]
    first, second, third, _ = history.attempts
    assert first.grade is not None
    assert second.grade is not None
    assert first.grade.position < second.grade.position
    assert second.grade.evidence
    assert third.grade is None
    assert first.advantage is not None
    assert first.advantage.grpo_advantage == 0.5
    assert first.advantage.advantage > 0.5
    assert [version.record.version for version in history.versions] == [0, 1]
    assert not history.missing
    assert not history.unreadable


async def test_the_object_holds_every_reference_and_no_transcript() -> None:
    log = empty_log()
    lay(log, make_run())
    told = as_object(await history_of(log))
    assert told["has_ended"] is True
    attempt = told["attempts"][1]
    assert attempt["verdict"]["trajectory"] == attempt["trajectory"]["ref"]
    assert attempt["verdict"]["attempt"]["request"] == attempt["request"]["ref"]
    assert "messages" not in attempt["trajectory"]
    assert told["outcomes"][0]["step"] == 1
    assert told["gradings"][0]["grader"] == "rules/1"
    assert told["advantages"][0]["rescale"] > 1


async def test_people_see_verdicts_ranking_advantages_and_the_outcome() -> None:
    log = empty_log()
    lay(log, make_run())
    text = text_of(await history_of(log))
    for words in ("trained at step 1", "graded by", "+0.5000", "rescaled by", "group-advantages/1", "outcomes[", "passed"):
        assert words in text, words


async def test_a_group_in_flight_says_how_far_it_has_come() -> None:
    log = empty_log()
    append(log, make_request(group_size=1))
    assert (await history_of(log)).reached == "in flight, on rollout-requests"
    append(log, make_trajectory(make_request(group_size=1)))
    history = await history_of(log)
    assert history.reached == "in flight, on trajectories"
    assert not as_object(history)["has_ended"]
    assert "none yet" in text_of(history)


async def test_an_outcome_of_a_step_that_was_superseded_does_not_count() -> None:
    log = empty_log()
    append(log, make_request(group_size=1))
    append(log, make_outcome(run_id="a", step=5))
    for version in (make_version(5, "a"), make_version(3, "b", lineage=[LineageEntry(run_id="a", last_step=3)])):
        append(log, version)
    history = await history_of(log)
    assert history.reached == "in flight, on rollout-requests"
    assert [superseded.record.step for superseded in history.superseded] == [5]
    assert "superseded" in text_of(history)


async def test_verdicts_that_retention_took_live_on_in_the_group() -> None:
    log = empty_log()
    lay(log, way_of("t-000000"))
    lost_verdicts(log)
    history = await history_of(log)
    assert [attempt.judged.status for attempt in history.attempts if attempt.judged] == ["passed", "passed", "failed", "failed"]


async def test_dead_letters_unreadable_and_missing_records_are_told() -> None:
    log = empty_log()
    lay(log, way_of("t-000000"))
    number = transport_of(log).number_of(b"t-000000", NUM_PARTITIONS)
    log.truncate(Partition("trajectories", number), 1)
    bad = log.append(Send(topic="verdicts", key=b"t-000000", value=b"\xc1"), at=1001.0)
    letter = append(log, DeadLetter(stage="gatherer", source=bad, error="no verdict\x1b[31m", key=b"t-000000", value=b"\xc1"))
    history = await history_of(log)
    assert [str(ref) for ref, _ in history.unreadable] == [str(bad)]
    text = text_of(history)
    assert f"{letter} by gatherer: no verdict\\x1b[31m" in text
    assert f"trajectories[{number}]@0: the log no longer holds it" in text
    assert "\x1b[31m" not in text
    assert "value" not in as_object(history)["dead_letters"][0]


async def test_an_attempt_shows_transcript_and_patch_with_control_characters_made_visible() -> None:
    log = empty_log()
    request = make_request(group_size=1)
    append(log, request)
    messages = [Message(role="user", content="do [bold]it[/bold]"), Message(role="assistant", content="\x1b]0;evil\x07 done")]
    append(log, make_trajectory(request, messages=messages, patch="--- a/x\n+++ b/x\n"))
    history = await history_of(log)
    text = text_of(history, 0)
    assert "do [bold]it[/bold]" in text
    assert "\\x1b]0;evil\\x07 done" in text
    assert "+++ b/x" in text
    told = attempt_object(history.attempts[0])
    assert told["trajectory"]["messages"][1]["content"].endswith("done")


async def test_of_doubled_records_the_first_counts_and_both_are_told() -> None:
    log = empty_log()
    append(log, make_request(group_size=1))
    for reason in ("first", "second"):
        append(log, make_verdict(reason=reason))
    history = await history_of(log)
    [attempt] = history.attempts
    assert attempt.judged is not None
    assert attempt.judged.reason == "first"
    assert len(history.of(Verdict)) == 2


def test_a_policy_version_that_is_told_twice_is_kept_once() -> None:
    history = GroupHistory("t-000000", TOPICS)
    log = empty_log()
    append(log, make_outcome(run_id="a", step=1))
    ref = append(log, make_version(1))
    for at, partition in log.partitions.items():
        for raw in log.visible(at, partition.start, 10)[0]:
            if at.topic == "outcomes":
                history.add(raw)
    delivery = replace(make_delivery(make_version(1)), ref=ref)
    history.observe(delivery)
    history.observe(delivery)
    assert [type(version.record) for version in history.versions] == [PolicyVersion]
