"""`run_audit` over logs that retention shortens while they are read."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gagar.audit.result import AuditResult
from gagar.cli.audit import run_audit
from gagar.records import encode
from gagar.stream.kafka.topic_plan import TopicState
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.transport import Partition, Send
from tests.audit_runs import laid_out, make_run
from tests.contract.world import make_run as make_run_file
from topology import topics

STATE = TopicState(num_partitions=1, replication_factor=1, settings={})


class RetiringTransport(MemoryTransport):
    """As it opens, which is after the audit has asked for the logs' ranges, retention takes what lies before `taken`."""

    def __init__(self, log: MemoryLog, taken: Mapping[str, int]) -> None:
        super().__init__(log)
        self._taken = taken

    async def open(self) -> None:
        for topic, start in self._taken.items():
            self.log.truncate(Partition(topic, 0), start)


class FakeAdmin:
    """`Admin` over a log in memory, whose topics have one partition each."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe(self, names: Sequence[str]) -> dict[str, TopicState]:
        return dict.fromkeys(names, STATE)

    def has_members(self, groups: Sequence[str]) -> bool:
        return False

    def end_offsets(self, asked: Mapping[str, int], *, is_committed: bool = True) -> dict[tuple[str, int], int]:
        return {(name, 0): self._log.partitions[Partition(name.removeprefix("t."), 0)].end for name in asked}

    def start_offsets(self, asked: Mapping[str, int]) -> dict[tuple[str, int], int]:
        return {(name, 0): self._log.partitions[Partition(name.removeprefix("t."), 0)].start for name in asked}


async def audited(monkeypatch: pytest.MonkeyPatch, taken: Mapping[str, int]) -> AuditResult:
    """A sound run, audited while retention takes the beginnings of some topics."""
    log = MemoryLog(topics.TOPICS, num_partitions=1)
    for delivery in laid_out(make_run()):
        log.append(Send(topic=delivery.ref.topic, key=delivery.key.encode(), value=encode(delivery.record)), at=1000.0)
    transport: Any = RetiringTransport(log, taken)
    monkeypatch.setattr("gagar.stream.kafka.client.KafkaTransport", lambda servers, run_name: transport)
    monkeypatch.setattr("gagar.cli.audit.Admin", lambda servers: FakeAdmin(log))
    return await run_audit(make_run_file("t", "localhost:9", num_partitions=1))


async def test_a_sound_run_that_keeps_its_records_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    report = await audited(monkeypatch, {})
    assert (report.findings, report.num_requested, report.num_retired, report.num_followed) == ([], 4, 0, 32)


async def test_requests_that_retention_takes_during_an_audit_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    report = await audited(monkeypatch, {"rollout-requests": 6})
    assert (report.findings, report.num_requested, report.num_retired) == ([], 2, 2)


async def test_records_on_the_way_that_retention_takes_during_an_audit_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    report = await audited(monkeypatch, {"verdicts": 16, "groups": 2, "graded-groups": 2, "advantages": 2})
    assert (report.findings, report.num_requested) == ([], 4)


async def test_what_references_point_to_may_go_during_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    report = await audited(monkeypatch, {"trajectories": 8, "trajectory-tokens": 16})
    assert (report.findings, report.num_requested) == ([], 4)
