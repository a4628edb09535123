"""`gagar replay`: what it takes, what it prints."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from consumers.advantage_publisher import Config, assign_advantages
from gagar.cli import replay as command
from gagar.grading.rules import rank
from gagar.records import GradedGroup, GroupAdvantages
from gagar.stream.memory.transport import MemoryTransport
from gagar.stream.transport import Transport
from tests.builders import CLEAN, DEAD_CODE, OUTSIDE, make_group
from tests.replays import Past
from topology.resources import Resources


@pytest.fixture
def past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Past:
    """Two graded groups with their advantages."""
    past = Past(tmp_path)
    for group_id in ("t-0", "t-1"):
        group = make_group([CLEAN, OUTSIDE, DEAD_CODE, None], group_id)
        graded = GradedGroup(group=group, grader="rules/1", grades=rank(group, 3))
        past.write(graded)
        [advantages] = assign_advantages(graded, Config())
        past.write(advantages)

    def transport(resources: Resources) -> Transport:
        return MemoryTransport(past.log)

    monkeypatch.setattr(Resources, "_kafka", transport)
    monkeypatch.setattr(command, "cluster_to_read", lambda run: nullcontext())
    monkeypatch.setattr(command, "create_topics", lambda run, shadows: past.create(shadows))
    return past


def invoke(past: Past, *arguments: str) -> Result:
    where = ("--run", str(past.path), "--set", f"run.dir={past.directory}")
    return CliRunner().invoke(command.replay, [*arguments, *where])


def last_object(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_the_last_line_is_an_object_that_says_what_has_changed(past: Past) -> None:
    result = invoke(past, "advantage-publisher", "--diff", "--json", "--set", "advantage_publisher.weights.rejected=0.5")
    told = last_object(result)
    counts = [told[name] for name in ("stage", "records", "equal", "changed", "missing")]
    assert counts == ["advantage-publisher", 2, 0, 2, 0]
    assert told["fields"]["members.weight"] == {"count": 2, "largest": 0.3, "values": {}}
    assert [difference["key"] for difference in told["differences"]] == ["t-0", "t-1"] or len(told["differences"]) == 2
    assert Path(told["directory"]).parent == past.directory / "runs/test/replays"


def test_without_a_comparison_the_object_holds_none(past: Past) -> None:
    told = last_object(invoke(past, "advantage-publisher", "--json"))
    assert (told["records"], "equal" in told, "fields" in told) == (2, False, False)


def test_people_see_what_has_changed_by_group_and_in_sum(past: Past) -> None:
    result = invoke(past, "advantage-publisher", "--diff", "--set", "advantage_publisher.weights.rejected=0.5")
    assert result.exit_code == 0, result.output
    for text in ("by group", "in sum", "members[1].weight", "members.weight", "by up to 0.3", "t-1"):
        assert text in result.stdout
    expected = "advantage-publisher: 2 replayed, 0 equal, 2 changed in 2 groups, 0 missing; in "
    assert expected in result.stdout.replace("\n", " ")


def test_a_replay_that_equals_the_past_says_so(past: Past) -> None:
    result = invoke(past, "advantage-publisher", "--diff")
    assert "2 replayed, 2 equal, 0 changed in 0 groups, 0 missing" in result.stdout.replace("\n", " ")
    assert "by group" not in result.stdout


def test_a_directory_goes_on_and_may_be_compared_later(past: Past) -> None:
    where = ("--dir", str(past.directory / "mine"), "--group", "t-1", "--json")
    assert last_object(invoke(past, "advantage-publisher", *where))["records"] == 1
    assert last_object(invoke(past, "advantage-publisher", *where, "--diff"))["equal"] == 1
    assert (past.directory / "mine/records.jsonl").read_text().count("\n") == 1


def test_shadow_topics_are_made_and_a_second_call_goes_on_with_them(past: Past) -> None:
    for _ in range(2):
        assert last_object(invoke(past, "advantage-publisher", "--shadow", "x", "--json"))["records"] == 2
    names = {at.topic for at in past.log.partitions if at.topic.startswith("replay.")}
    assert names == {"replay.x.advantages", "replay.x.outcomes"}
    assert GroupAdvantages in {topic.record for topic in past.log._topics.values()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--step", "7-6"), "expected a step as 7, or steps as 7-9, got '7-6'"),
        (("--step", "soon"), "expected a step as 7, or steps as 7-9, got 'soon'"),
        (("--offsets", "groups[0]@1"), "expected offsets of graded-groups as graded-groups[2]@118 or graded-groups[2]@118-140"),
        (("--offsets", "graded-groups[0]@9-1"), "got 'graded-groups[0]@9-1'"),
        (("--shadow", "a.b"), "expected at most 60 ASCII letters, digits, - and _, got 'a.b'"),
        (("--since", "soon"), "expected a time in the past"),
    ],
)
def test_what_chooses_nothing_is_refused_before_any_connection(past: Past, arguments: tuple[str, ...], message: str) -> None:
    result = invoke(past, "advantage-publisher", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("|", " ").split())
    assert not (past.directory / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("learner",), "got learner: its steps cannot be replayed yet"),
        (("grader", "--set", "grader.kind=best"), "grader.kind: expected one of rules, none"),
    ],
)
def test_a_wrong_stage_or_setting_is_a_config_error(past: Past, arguments: tuple[str, ...], message: str) -> None:
    result = invoke(past, *arguments)
    assert message in str(result.exception)
    assert not (past.directory / "runs").exists()


def test_offsets_are_taken_as_messages_write_them(past: Past) -> None:
    [first, *_] = [ref for ref in past.log.partitions if ref.topic == "graded-groups" and past.log.partitions[ref].entries]
    told = last_object(invoke(past, "advantage-publisher", "--json", "--offsets", f"graded-groups[{first.number}]@0-0"))
    assert told["records"] == 1


def test_a_bar_on_a_terminal_leaves_stdout_to_the_object(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = invoke(past, "advantage-publisher", "--json")
    assert last_object(result)["records"] == len(result.stdout.splitlines()) + 1
    assert "replaying" in result.stderr


def test_elsewhere_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    view = command.LineView()
    for done in range(4):
        now[0] += command.LINE_S / 2
        view("replaying", done, 9)
    now[0] += command.LINE_S
    view("comparing", 5, None)
    assert capsys.readouterr().err.splitlines() == ["replaying 1 of 9 offsets", "replaying 3 of 9 offsets", "comparing 5"]
