"""`gagar audit`: what it prints and how it exits."""

import json
from contextlib import nullcontext
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from gagar.audit.fold import Audit
from gagar.audit.result import AuditResult
from gagar.audit.view import as_lines
from gagar.cli import audit as command
from gagar.cli.audit import since_time
from gagar.config import Run
from tests.builders import make_delivery, make_outcome, make_request, make_version

RECORDS = [
    make_version(0),
    make_version(1),
    make_version(2),
    *(make_request("e-000002-0000", i, group_size=2) for i in range(2)),
    make_outcome("e-000002-0000", "evaluated", step=2),
    *(make_request("t-000000", i, group_size=2) for i in range(2)),
    make_outcome("t-000000", "dropped", reason="all_failed"),
]


def make_report(records: list[Any]) -> AuditResult:
    audit = Audit()
    for record in records:
        audit.apply(make_delivery(record))
    return audit.result()


def invoke(monkeypatch: pytest.MonkeyPatch, records: list[Any], *arguments: str) -> tuple[Result, list[tuple[float, bool]]]:
    """Runs the command over records; the answer's second part: since when, and whether groups in flight were allowed."""
    asked: list[tuple[float, bool]] = []

    async def run_audit(run: Run, *, since: float = 0.0, is_in_flight_allowed: bool = False) -> AuditResult:
        asked.append((since, is_in_flight_allowed))
        return make_report(records)

    monkeypatch.setattr(command, "run_audit", run_audit)
    monkeypatch.setattr("gagar.cli.saved_run.run_names", lambda directory: [])
    monkeypatch.setattr("gagar.cli.saved_run.cluster_to_read", lambda run: nullcontext())
    return CliRunner().invoke(command.audit, list(arguments)), asked


def test_a_clean_run_is_told_in_words_and_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = invoke(monkeypatch, RECORDS)
    assert result.exit_code == 0, result.output
    assert "dropped    1 (all_failed 1)" in result.output
    assert "round at step 2: 4/4 valid attempts, pass rate 0.500, clean 0.500" in result.output
    assert result.output.splitlines()[-1] == "clean"
    assert asked == [(0.0, False)]


def test_a_finding_is_told_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = invoke(monkeypatch, [*RECORDS, RECORDS[-1]])
    assert result.exit_code == 1
    assert "finding: group t-000000: expected one outcome, got 2" in result.output
    assert result.output.splitlines()[-1] == "not clean: 2 findings"


def test_json_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = invoke(monkeypatch, RECORDS, "--json", "--allow-in-flight")
    report = json.loads(result.output)
    assert (report["is_clean"], report["num_requested"], report["dropped"]) == (True, 2, {"all_failed": 1})
    assert report["rounds"]["2"]["pass_rate"] == 0.5
    assert asked == [(0.0, True)]


def test_everything_that_a_report_knows_is_told() -> None:
    report = replace(
        make_report(RECORDS),
        since=1767268800.0,
        overdue={"groups": 2, "advantages": 1},
        num_superseded=3,
        num_retired=4,
        num_references=50,
        num_followed=5,
        num_retired_references=6,
        num_dead_letters=7,
    )
    lines = list(as_lines(report))
    for line in (
        "since      2026-01-01 12:00:00 UTC",
        "overdue    3 (groups 2, advantages 1)",
        "superseded 3 outcomes of steps that the learner went back on",
        "retired    4 groups of which retention has taken requests",
        "references 50 checked, 5 of them followed",
        "           6 to records that retention has taken",
        "dead       7 dead letters",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", 1_999_910.0),
        ("30m", 1_998_200.0),
        ("2h", 1_992_800.0),
        ("1d", 1_913_600.0),
        ("1970-01-02", 86_400.0),
        ("1970-01-02T03:00", 97_200.0),
        ("1970-01-02T03:00:00+01:00", 93_600.0),
        (None, 0.0),
    ],
)
def test_a_time_is_told_as_a_duration_or_in_iso_form(monkeypatch: pytest.MonkeyPatch, text: str | None, at: float) -> None:
    monkeypatch.setattr("time.time", lambda: 2_000_000.0)
    assert since_time(None, None, text) == at


@pytest.mark.parametrize("text", ["", "2", "2 h", "-2h", "1w", "2h30m", "yesterday", "99d", "1970-01-25", "1969-01-01"])
def test_another_form_and_a_time_that_is_no_past_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("time.time", lambda: 2_000_000.0)
    with pytest.raises(click.BadParameter, match="expected a time in the past as 90s, 30m, 2h, 1d or 2026-01-31T12:00, got"):
        since_time(None, None, text)


def test_the_command_takes_a_time_and_refuses_another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = invoke(monkeypatch, RECORDS, "--since", "2026-01-01T12:00Z")
    assert (result.exit_code, asked) == (0, [(1767268800.0, False)])
    result, asked = invoke(monkeypatch, RECORDS, "--since", "soon")
    assert (result.exit_code, asked) == (2, [])
    assert "Invalid value for '--since': expected a time in the past" in result.output
