"""`topology.replay` over a past that the real stages have made, on the memory transport."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gagar.errors import ConfigError, UnavailableError
from gagar.records import encode
from gagar.replay import effects
from gagar.replay.answers import read_answers
from gagar.replay.plan import make_plan
from gagar.replay.selection import OffsetRange, Selection
from gagar.stream.handlers import Delivery, Effect, Output
from gagar.stream.memory.transport import MemoryTransport
from gagar.stream.spec import Stage
from gagar.stream.transport import Partition
from tests.builders import make_outcome
from tests.replays import FLAKY, SLOW, Past, ScriptedSandbox, write_task
from topology import topics
from topology.replay import REPLAYED, find_replayed
from topology.stages import ADVANTAGE_PUBLISHER, GATHERER, GRADER, VERIFIER


@pytest.fixture
async def past(tmp_path: Path) -> Past:
    """Three mixed groups, one that failed, one of another task."""
    ScriptedSandbox.asked.clear()
    ScriptedSandbox.down_at = -1
    past = Past(tmp_path)
    for group_id in ("t-0", "t-1", "t-2"):
        past.attempt(group_id)
    past.attempt("t-3", ["wrong\n"] * 4)
    past.attempt("t-4", ["solved\n", "solved dead dead\n", "wrong\n"], task_id="c")
    await past.live()
    return past


NUM_ANSWERS = {VERIFIER.name: 19, GATHERER.name: 5, GRADER.name: 4, ADVANTAGE_PUBLISHER.name: 4}


@pytest.mark.parametrize("stage", REPLAYED, ids=lambda stage: stage.name)
async def test_a_stage_answers_as_it_did_and_writes_no_live_topic(past: Past, stage: Stage) -> None:
    before, expected = past.state(), NUM_ANSWERS[stage.name]
    result = await past.replay(stage)
    assert (result.records, result.equal) == (expected, expected)
    assert (result.changed, result.missing, result.unrecorded) == (0, 0, 0)
    assert past.state() == before
    lines = [json.loads(line) for line in (past.directory / "replay/records.jsonl").read_text().splitlines()]
    assert len(lines) == expected


async def test_the_advantages_of_recorded_groups_are_the_same_to_the_last_bit(past: Past) -> None:
    await past.replay(ADVANTAGE_PUBLISHER)
    recorded = {record.group_id: record for record in await past.read(topics.ADVANTAGES)}
    replayed = {answer.key: answer.outputs for answer in read_answers(past.directory / "replay")}
    assert replayed.keys() == recorded.keys() == {"t-0", "t-1", "t-2", "t-4"}
    assert all([encode(output) for output in replayed[key]] == [encode(record)] for key, record in recorded.items())


async def test_other_weights_change_advantages_and_are_told_by_field_and_in_sum(past: Past) -> None:
    result = await past.replay(ADVANTAGE_PUBLISHER, "advantage_publisher.weights.rejected=0.5")
    assert (result.equal, result.changed, result.groups_changed, result.missing) == (1, 3, 3, 0)  # t-4 holds no rejected one
    assert result.settings == ["advantage_publisher.weights.rejected: was 0.2, now 0.5"]
    assert result.fields["members.weight"].count == 3
    assert result.fields["members.weight"].largest == pytest.approx(0.3)
    assert result.fields["members.advantage"].count >= 6
    assert "members.grpo_advantage" not in result.fields
    assert result.fields["was_capped"].values == {"true -> false": 3}
    change = next(change for change in result.differences[0].changes if change.path == "members[2].weight")
    assert (change.before, change.now) == (0.2, 0.5)
    lines = (past.directory / "replay/differences.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == [difference.key for difference in result.differences]


async def test_another_grader_changes_rankings_and_tiers(past: Past) -> None:
    result = await past.replay(GRADER, "grader.kind=none")
    assert (result.records, result.changed) == (4, 4)
    assert result.fields["grader"].values == {"rules/1 -> none/1": 4}
    assert result.fields["grades.tier"].count == 7
    assert result.fields["grades.position"].count == 7
    assert result.tasks == {"a": 3, "c": 1}


async def test_another_time_out_flips_verdicts(past: Past) -> None:
    past.attempt("t-5", [SLOW, "wrong\n"])
    await past.live()
    result = await past.replay(VERIFIER, "verifier.test_timeout_s=1")
    assert (result.records, result.changed) == (21, 1)
    assert result.fields["status"].values == {"passed -> failed": 1}
    assert result.fields["reason"].values == {"none -> time-out of the tests": 1}
    assert result.differences[0].key == "t-5"


async def test_a_flaky_test_is_found_by_its_flipped_verdicts(past: Past) -> None:
    past.attempt("t-5", [FLAKY, FLAKY, "solved\n"], task_id="c")
    await past.live()
    result = await past.replay(VERIFIER, "verifier.sandbox.passes_flaky=false")
    assert (result.changed, result.fields["status"].values, result.tasks) == (2, {"passed -> failed": 2}, {"c": 2})
    assert result.fields["reason"].values == {"none -> 1 of 1 tests did not pass, first t.py::t": 2}


async def test_inputs_that_retention_took_are_named_and_count_as_no_change(past: Past) -> None:
    [at] = {delivery.ref.partition for delivery in await past.deliveries(topics.TRAJECTORIES) if delivery.key == "t-1"}
    lost = [delivery.ref for delivery in await past.deliveries(topics.TRAJECTORIES) if delivery.ref.partition == at][:3]
    past.log.truncate(Partition("trajectories", at), lost[-1].offset + 1)
    result = await past.replay(VERIFIER)
    assert (result.records, result.equal, result.changed, result.missing) == (16, 16, 0, 3)
    assert result.missing_names == sorted(map(str, lost))
    assert result.retired == [f"trajectories[{at}]: offsets below {lost[-1].offset + 1} are gone: retention took them"]


async def test_what_retention_takes_while_a_replay_is_interrupted_is_named_too(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "MAX_TRIES", 1)
    ScriptedSandbox.asked.clear()
    ScriptedSandbox.down_at = 1
    with pytest.raises(UnavailableError, match="sandbox"):
        await past.replay(VERIFIER, "stream.window=1")
    past.log.truncate(Partition("trajectories", 1), 2)
    result = await past.replay(VERIFIER, "stream.window=1")
    assert (result.records, result.missing) == (17, 2)
    assert result.missing_names == ["trajectories[1]@0", "trajectories[1]@1"]


async def test_a_group_that_is_not_there_is_named(past: Past) -> None:
    result = await past.replay(GRADER, selection=Selection(groups=frozenset({"t-1", "t-99"})), is_diff=False)
    assert (result.records, result.missing, result.missing_names, result.is_compared) == (1, 1, ["t-99"], False)


@pytest.mark.parametrize(
    ("chosen", "keys"),
    [
        ({"selection": Selection(groups=frozenset({"t-1", "t-4"}))}, {"t-1", "t-4"}),
        ({"selection": Selection(tasks=frozenset({"c"}))}, {"t-4"}),
        ({"selection": Selection(tasks=frozenset({"c"}), groups=frozenset({"t-1"}))}, set()),
        ({"selection": Selection(since=1.0, until=2.0)}, set()),
        ({"selection": Selection(since=1.0)}, {"t-0", "t-1", "t-2", "t-3", "t-4"}),
        ({"steps": ((3, 4),)}, {"t-0", "t-2"}),
    ],
)
async def test_records_are_chosen_by_group_task_time_and_step(past: Past, chosen: dict[str, Any], keys: set[str]) -> None:
    for group_id, step in (("t-0", 3), ("t-1", 5), ("t-2", 4)):
        past.write(make_outcome(group_id, "trained", step=step))
    for stage in (VERIFIER, GATHERER):
        result = await past.replay(stage, name=stage.name, **chosen)
        assert {answer.key for answer in read_answers(past.directory / stage.name)} == keys
        assert (result.changed, result.equal) == (0, result.records)


async def test_offsets_choose_inputs(past: Past) -> None:
    [first, *_] = await past.deliveries(topics.GRADED_GROUPS)
    at = OffsetRange(partition=first.ref.partition, first=first.ref.offset, last=first.ref.offset)
    result = await past.replay(ADVANTAGE_PUBLISHER, selection=Selection(offsets=(at,)))
    assert (result.records, result.equal, result.missing) == (1, 1, 0)


async def test_a_replay_that_was_interrupted_goes_on_where_it_was(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "MAX_TRIES", 1)
    ScriptedSandbox.asked.clear()
    ScriptedSandbox.down_at = 7
    with pytest.raises(UnavailableError, match="sandbox: expected to be up, got down"):
        await past.replay(VERIFIER, "stream.window=1")
    path = past.directory / "replay/records.jsonl"
    assert len(path.read_text().splitlines()) == len(ScriptedSandbox.asked) == 7
    with path.open("ab") as file:
        file.write(b'{"input":{"topic":"traj' + b"e" * 100_000)
    result = await past.replay(VERIFIER, "stream.window=1")
    assert (result.records, result.equal, len(ScriptedSandbox.asked)) == (19, 19, 19)
    assert len({str(answer.input) for answer in read_answers(past.directory / "replay")}) == 19


async def test_an_outage_that_ends_in_time_is_waited_out(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "MAX_WAIT_S", 0.0)
    ScriptedSandbox.asked.clear()
    ScriptedSandbox.down_at = 7
    result = await past.replay(VERIFIER, "stream.window=1", selection=Selection(groups=frozenset({"t-0", "t-1"})))
    assert (result.records, result.equal) == (8, 8)


async def test_a_reducer_that_was_interrupted_gives_each_answer_once(past: Past) -> None:
    await past.replay(GATHERER)
    path = past.directory / "replay/records.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]) + b'{"inp')
    result = await past.replay(GATHERER)
    assert (result.records, result.equal) == (5, 5)
    assert path.read_bytes() == whole


async def test_a_replay_goes_on_only_as_what_it_was(past: Past) -> None:
    await past.replay(GRADER)
    with pytest.raises(ConfigError, match=r"that was begun there to go on, got grader\.kind none in place of rules"):
        await past.replay(GRADER, "grader.kind=none")
    with pytest.raises(ConfigError, match="got stage gatherer in place of grader; take another --dir"):
        await past.replay(GATHERER)
    with pytest.raises(ConfigError, match="got a choice of --group t-1 in place of all"):
        await past.replay(GRADER, asked=("--group t-1",))


async def test_a_directory_that_holds_something_else_is_left_alone(past: Past) -> None:
    (past.directory / "mine").mkdir()
    (past.directory / "mine/thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="expected a new directory, or one with a replay, got another one"):
        await past.replay(GRADER, name="mine")
    assert [path.name for path in (past.directory / "mine").iterdir()] == ["thesis.txt"]


async def test_no_more_inputs_are_in_work_than_the_window_allows(past: Past) -> None:
    class Counting(Effect):
        num_open = num_most = 0

        async def handle(self, delivery: Delivery[Any]) -> Sequence[Output]:
            self.num_open += 1
            self.num_most = max(self.num_most, self.num_open)
            await asyncio.sleep(0)
            self.num_open -= 1
            return []

    counting = Counting()
    transport = MemoryTransport(past.log)
    plan = await make_plan(transport, VERIFIER, topics.DEAD_LETTERS, run="r", asked=(), settings={}, selection=Selection())
    done: list[int] = []
    scan = effects.replay_effect(transport, topics.TRAJECTORIES, counting, plan, after=None, window=3, note=done.append)
    assert len([answer async for answer in scan]) == 19
    assert counting.num_most == 3
    assert done == sorted(done)
    assert done[-1] == plan.num_offsets


async def test_a_record_that_would_be_a_dead_letter_is_an_answer_and_equals_one(past: Past) -> None:
    past.attempt("t-5", ["solved\n", "wrong\n"], task_id="unknown")
    await past.serve(VERIFIER)
    result = await past.replay(VERIFIER)
    assert (result.records, result.dead_letters, result.equal, result.missing) == (21, 2, 21, 0)


async def test_what_was_a_dead_letter_and_is_answered_now_has_changed(past: Past) -> None:
    past.attempt("t-5", ["solved\n", "wrong\n"], task_id="unknown")
    await past.serve(VERIFIER)
    write_task(past.directory / "heldout.jsonl", "unknown")
    result = await past.replay(VERIFIER)
    assert (result.records, result.changed, result.dead_letters) == (21, 2, 0)
    expected = "expected a task of [tasks], got 'unknown' -> none"
    assert all(text.endswith(expected) for text in result.fields["dead_letter"].values)


async def test_answers_that_were_not_recorded_are_counted_apart(past: Past) -> None:
    past.attempt("t-5")
    result = await past.replay(VERIFIER)
    assert (result.records, result.equal, result.unrecorded, result.missing) == (23, 19, 4, 0)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("learner", "its steps cannot be replayed yet"),
        ("sampler", "a source has no inputs to replay"),
        ("rollout-worker", "sampling again gives other trajectories"),
    ],
)
def test_other_stages_are_refused(name: str, why: str) -> None:
    expected = f"stage: expected one to replay, of verifier, gatherer, grader, advantage-publisher, got {name}: {why}"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        find_replayed(name)
