"""`gagar audit`: what it prints and how it exits."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gagar.audit import Audit, AuditReport
from gagar.cli import audit as command
from gagar.config import Run
from tests.builders import make_delivery, make_outcome, make_request, make_version

RECORDS = [
    make_version(2),
    *(make_request("e-000002-0000", i, group_size=2) for i in range(2)),
    make_outcome("e-000002-0000", "evaluated", step=2),
    *(make_request("t-000000", i, group_size=2) for i in range(2)),
    make_outcome("t-000000", "dropped", reason="all_failed"),
]


def make_report(records: list[Any]) -> AuditReport:
    audit = Audit()
    for record in records:
        audit.apply(make_delivery(record))
    return audit.report()


def invoke(monkeypatch: pytest.MonkeyPatch, records: list[Any], *arguments: str) -> tuple[Result, list[bool]]:
    """Runs the command over records; the answer's second part: whether groups in flight were allowed."""
    asked: list[bool] = []

    async def run_audit(run: Run, *, is_in_flight_allowed: bool = False) -> AuditReport:
        asked.append(is_in_flight_allowed)
        return make_report(records)

    monkeypatch.setattr(command, "run_audit", run_audit)
    return CliRunner().invoke(command.audit, list(arguments)), asked


def test_a_clean_run_is_told_in_words_and_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = invoke(monkeypatch, RECORDS)
    assert result.exit_code == 0, result.output
    assert "dropped    1 (all_failed 1)" in result.output
    assert "round at step 2: 4/4 valid attempts, pass rate 0.500, clean 0.500" in result.output
    assert result.output.splitlines()[-1] == "clean"
    assert asked == [False]


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
    assert asked == [True]
