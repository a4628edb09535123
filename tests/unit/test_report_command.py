"""`gagar report`: a run's page from its topics, whether it has ended or not."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gagar.audit.fold import Audit
from gagar.cli.report import audit_text, make_report
from gagar.config import KafkaTable, Run
from gagar.errors import ConfigError
from gagar.stream.handlers import Delivery
from gagar.stream.spec import Topic
from tests.builders import make_delivery, make_outcome, make_request, make_run

Records = dict[str, list[Any]]


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Records:
    """Topics of a cluster in memory."""
    records: Records = {}

    async def scan(
        kafka: KafkaTable, run_name: str, topics: Sequence[Topic], *, follow: bool = False
    ) -> AsyncGenerator[Delivery[Any], None]:
        for topic in topics:
            for offset, record in enumerate(records.get(topic.name, [])):
                yield make_delivery(record, topic.name, offset, at=100.0 + 10 * offset)

    async def audit(run: Run, *, is_in_flight_allowed: bool = False) -> Any:
        assert is_in_flight_allowed
        fold = Audit()
        for name, some in records.items():
            for record in some:
                fold.apply(make_delivery(record, name))
        return fold.result(is_in_flight_allowed=True)

    monkeypatch.setattr("gagar.stream.kafka.client.scan", scan)
    monkeypatch.setattr("gagar.cli.report.run_audit", audit)
    monkeypatch.setattr("gagar.cli.report.cluster_now", lambda run: KafkaTable(bootstrap_servers="broker:1"))
    monkeypatch.setattr("gagar.report.page.draw_pictures", lambda snapshot: [])
    return records


async def test_a_run_that_goes_on_has_a_report(topics: Records, tmp_path: Path) -> None:
    topics["rollout-requests"] = [make_request("e-0", i) for i in range(4)] + [make_request("t-0", i) for i in range(4)]
    topics["outcomes"] = [make_outcome("e-0", "evaluated")]
    summary = await make_report(make_run(tmp_path))
    assert summary.report == str(tmp_path / "runs" / "try" / "report.html")
    assert (summary.groups_requested, summary.groups_evaluated, summary.audit) == (2, 1, "clean")
    assert summary.seconds == 70.0


async def test_a_name_without_records_is_refused_and_nothing_written(topics: Records, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"run\.name: expected a run with records, got 'try'; name one with --set run\.name=NAME"
    ):
        await make_report(make_run(tmp_path))
    assert await asyncio.to_thread(os.listdir, tmp_path) == []


def test_findings_are_joined_into_one_word() -> None:
    assert audit_text([]) == "clean"
    assert audit_text(["group a: x", "group b: y"]) == "group a: x; group b: y"


def test_many_findings_are_cut_with_a_count() -> None:
    text = audit_text([f"group {i}: x" for i in range(25)])
    assert text.startswith("group 0: x; group 1: x;")
    assert text.endswith("group 9: x; and 15 more")
