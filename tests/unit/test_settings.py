"""A run's settings are on the log: whoever starts it records them, and no process begins with others."""

import socket
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from gagar.cli.run_file import open_run
from gagar.cli.topics import planning as topics
from gagar.cli.topics.planning import apply_topology
from gagar.config import Run
from gagar.errors import ConfigError, UnavailableError
from gagar.records import RECORDS_FORMAT
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from tests.runs import write_run
from topology import settings as settings_module
from topology.resources import Resources
from topology.settings import check_settings, read_settings, settings_of, write_settings
from topology.topics import RUN_SETTINGS

KAFKA = """
[kafka]
bootstrap_servers = "kafka-1:9093"
security_protocol = "SASL_SSL"
sasl_mechanism = "PLAIN"
sasl_username = "me"
sasl_password_file = "password"
"""


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog([RUN_SETTINGS])


def on(log: MemoryLog, run: Run) -> Resources:
    return Resources(run, lambda: MemoryTransport(log))


async def test_a_process_with_the_runs_settings_begins_and_is_told_where_it_differs_alone(
    tmp_path: Path, log: MemoryLog
) -> None:
    path = str(write_run(tmp_path))
    await write_settings(on(log, open_run(path, ("training.num_steps=4", "gatherer.grace_s=2.5"))))
    same = open_run(path, ("training.num_steps=4", "gatherer.grace_s=2.5", "run.dir=elsewhere", "kafka.bootstrap_servers=k:1"))
    assert await check_settings(on(log, same)) == []
    own = open_run(path, ("training.num_steps=4", "stream.window=8", "verifier.concurrency=7", f"run.root={tmp_path}/other"))
    assert await check_settings(on(log, own)) == [
        f'run.root: was "{tmp_path}", now "{tmp_path}/other"',
        "stream.window: was 64, now 8",
        "verifier.concurrency: was 2, now 7",
        "gatherer.grace_s: was 2.5, now 30.0",
    ]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("training.group_size=4", "training.group_size: was 8, now 4"),
        ("training.temperature=0.5", "training.temperature: was 1.0, now 0.5"),
        ("kafka.num_partitions=8", "kafka.num_partitions: was 4, now 8"),
        ("policy.path=other", 'policy.path: was "policy", now "other"'),
        ("tasks.train.path=other.jsonl", 'tasks.train.path: was "train.jsonl", now "other.jsonl"'),
        ("run.seed=5", "run.seed: was 0, now 5"),
    ],
)
async def test_a_process_is_refused_that_differs_where_all_must_be_the_same(
    tmp_path: Path, log: MemoryLog, override: str, line: str
) -> None:
    path = str(write_run(tmp_path))
    await write_settings(on(log, open_run(path)))
    with pytest.raises(ConfigError) as caught:
        await check_settings(on(log, open_run(path, (override, "verifier.concurrency=7"))))
    started = f"run test: expected the settings that it was started with on {socket.gethostname()} in {tmp_path}/.gagar"
    assert str(caught.value).startswith(started)
    assert f" UTC, got {line}; give this process the run's, or end all stages and start" in str(caught.value)


async def test_a_process_of_another_version_is_told_and_one_with_another_format_of_records_is_refused(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(str(write_run(tmp_path)))
    await write_settings(on(log, run))
    own = version("gagar-rl")
    monkeypatch.setattr(settings_module, "version", lambda name: "9.1")
    assert await check_settings(on(log, run)) == [f'gagar.version: was "{own}", now "9.1"']
    monkeypatch.setattr(settings_module, "RECORDS_FORMAT", RECORDS_FORMAT + 1)
    with pytest.raises(
        ConfigError, match=f"got gagar.records_format: was {RECORDS_FORMAT}, now {RECORDS_FORMAT + 1}; give this"
    ):
        await check_settings(on(log, run))
    await write_settings(on(log, run))
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"run test: expected records of format 1 or before, got 2 of gagar 9.1; this is g"):
        await check_settings(on(log, run))


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_process_of_a_run_that_nobody_has_started_waits_for_that(tmp_path: Path, is_there: bool) -> None:
    log = MemoryLog([RUN_SETTINGS] if is_there else [])
    with pytest.raises(
        UnavailableError, match=r"run test: expected its settings on topic run-settings, got none; run `gagar to"
    ):
        await check_settings(on(log, open_run(str(write_run(tmp_path)))))


async def test_the_record_tells_where_it_came_from_and_holds_neither_address_nor_access(tmp_path: Path, log: MemoryLog) -> None:
    run = open_run(str(write_run(tmp_path, KAFKA)))
    await write_settings(on(log, run))
    recorded = await read_settings(on(log, run))
    assert recorded is not None
    assert (recorded.settings, recorded.directory) == (settings_of(run), str(run.directory))
    assert abs(recorded.at - time.time()) < 60
    assert [key for key in recorded.settings if key.startswith("kafka.")] == [
        "kafka.num_partitions",
        "kafka.token_retention_bytes",
        "kafka.replication_factor",
        "kafka.transaction_timeout_s",
        "kafka.start_timeout_s",
    ]
    assert "run.dir" not in recorded.settings


class FakeAdmin:
    """A cluster that is as it should be; `members`: whether groups have some, look by look, the last answer for good."""

    members: Sequence[bool] = (False,)

    def __init__(self, kafka: object) -> None:
        self._looks = 0

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None: ...

    def has_members(self, groups: Sequence[str]) -> bool:
        assert "test.verifier" in groups
        self._looks += 1
        return self.members[min(self._looks, len(self.members)) - 1]

    def apply(self, run: Run, topics: object) -> list[str]:
        return []


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch, log: MemoryLog) -> type[FakeAdmin]:
    """`apply_topology` on a cluster in memory."""
    admin = type("Admin", (FakeAdmin,), {})
    monkeypatch.setattr(topics, "Admin", admin)
    monkeypatch.setattr(topics, "cluster_now", lambda run: run.kafka)
    monkeypatch.setattr(topics, "check_coordinators", lambda *_: None)
    monkeypatch.setattr(topics, "commit_initial_offsets", lambda *_: None)
    monkeypatch.setattr(topics, "MEMBER_POLL_S", 0.0)
    monkeypatch.setattr(Resources, "_kafka", lambda self: MemoryTransport(log))
    return admin


def test_a_start_names_every_difference_and_records_what_is_given_now(
    tmp_path: Path, starts: type[FakeAdmin], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_run(tmp_path))
    apply_topology(open_run(path, ("training.num_steps=4", "verifier.sandbox.processes=9")))
    assert capsys.readouterr().err == ""
    again = open_run(path, ("training.num_steps=40", "gatherer.grace_s=2.5"))
    apply_topology(again)
    assert capsys.readouterr().err.splitlines() == [
        "run test: training.num_steps: was 4, now 40",
        "run test: verifier.sandbox.processes: was 9, now 128",
        "run test: gatherer.grace_s: was 30.0, now 2.5",
    ]
    apply_topology(again)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("members", "override", "is_refused"),
    [
        ((True,), "training.group_size=4", True),
        ((True, True, False), "training.group_size=4", False),
        ((True,), "verifier.concurrency=7", False),
        ((True,), "training.group_size=8", False),
    ],
    ids=["other", "just died", "its own", "the same"],
)
async def test_a_start_with_other_settings_is_refused_beside_stages_at_work(
    tmp_path: Path,
    starts: type[FakeAdmin],
    log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
    members: Sequence[bool],
    override: str,
    is_refused: bool,
) -> None:
    monkeypatch.setattr(topics.goes_on, "__defaults__", (0.05 if is_refused else 10.0,))
    path = str(write_run(tmp_path))
    first, other = open_run(path), open_run(path, (override,))
    apply_topology(first)
    starts.members = members
    if is_refused:
        with pytest.raises(ConfigError, match=r"got training.group_size: was 8, now 4; end all its stages first, which are at"):
            apply_topology(other)
    else:
        apply_topology(other)
    recorded = await read_settings(on(log, first))
    assert recorded is not None
    assert recorded.settings == settings_of(first if is_refused else other)


def test_a_later_version_starts_a_run_again_and_an_earlier_one_does_not(
    tmp_path: Path, starts: type[FakeAdmin], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = open_run(str(write_run(tmp_path)))
    apply_topology(run)
    with monkeypatch.context() as patch:
        patch.setattr(settings_module, "RECORDS_FORMAT", RECORDS_FORMAT + 1)
        apply_topology(run)
    assert "run test: gagar.records_format: was 1, now 2" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"run test: expected records of format 1 or before, got 2"):
        apply_topology(run)
