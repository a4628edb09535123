"""A pipeline whose start fails or is interrupted: what is told and what is left; with real, tiny stages and no cluster."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from gagar.broker.watch import ClusterWatch, cluster_watch
from gagar.cli.up.command import LogView
from gagar.cli.up.pipeline import drive, run_pipeline
from gagar.config import KafkaTable, Run
from gagar.errors import UnavailableError
from gagar.processes.orphan_cleanup import OrphanCleanup, members
from gagar.processes.supervised import ProcessSpec
from tests.builders import make_run

NO_CLUSTER = "127.0.0.1:1"
STAGE = ProcessSpec(name="verifier", command=(sys.executable, "-I", "-c", "import time; time.sleep(600)"))


def make_far_run(root: Path) -> Run:
    """One on a cluster elsewhere, whose data are in a directory of their own."""
    return replace(make_run(root / "data"), kafka=KafkaTable(bootstrap_servers=NO_CLUSTER))


@pytest.fixture(autouse=True)
def heard_hang_ups() -> Iterator[None]:
    """Whoever runs the tests may have told them to ignore these."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def at_topics(monkeypatch: pytest.MonkeyPatch, do: Callable[[Run], None]) -> None:
    """Calls `do` when the topics are applied, before the stages start."""
    monkeypatch.setattr("gagar.cli.up.pipeline.apply_topology", do)


def hang_up(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGHUP)


async def test_a_window_that_is_closed_before_the_stages_run_ends_up_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def watch(run: Run) -> ClusterWatch:
        hang_up()
        return cluster_watch(run)

    monkeypatch.setattr("gagar.cli.up.pipeline.cluster_watch", watch)
    at_topics(monkeypatch, lambda run: None)
    run = make_far_run(tmp_path)
    async with asyncio.timeout(20):
        assert await drive(run, [STAGE], LogView(run, []), run.kafka) == 130
    assert not (run.directory / "logs").exists(), "a stage was started"
    assert "error" not in capsys.readouterr().err
    assert caplog.messages == []
    assert members(run.directory) == []


@contextmanager
def starting(told: list[str], do: Callable[[], None]) -> Iterator[str]:
    """A cluster during whose start `do` is called."""
    try:
        do()
        yield NO_CLUSTER
    finally:
        told.append("stopped")


def test_a_window_that_is_closed_while_the_broker_starts_ends_that_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("gagar.cli.up.pipeline.cluster_of", lambda run: starting(told, hang_up))
    run = make_far_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(run, [STAGE], LogView(run, []))
    assert told == ["stopped"]
    assert list(tmp_path.iterdir()) == []


def test_a_start_under_nohup_goes_on_after_a_hang_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    told: list[str] = []

    async def driven(*_: object) -> int:
        hang_up()
        return 7

    monkeypatch.setattr("gagar.cli.up.pipeline.cluster_of", lambda run: starting(told, hang_up))
    monkeypatch.setattr("gagar.cli.up.pipeline.drive", driven)
    assert run_pipeline(make_far_run(tmp_path), [], LogView(make_far_run(tmp_path), [])) == 7
    assert told == ["stopped"]


@contextmanager
def no_broker(run: Run) -> Iterator[KafkaTable]:
    raise AssertionError("a broker was started")
    yield run.kafka


def test_a_run_that_is_in_use_is_refused_before_a_broker_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagar.cli.up.pipeline.cluster_of", no_broker)
    run = make_run(tmp_path / "data")
    with OrphanCleanup(run.directory, is_exclusive=True):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UnavailableError, match=rf"in use by another gagar \(pid {os.getpid()}\); stop that one, or take"):
            run_pipeline(run, [STAGE], LogView(run, []))
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(AssertionError, match="a broker was started"):
        run_pipeline(run, [STAGE], LogView(run, []))
    with OrphanCleanup(run.directory, is_exclusive=True):
        assert members(run.directory) == [], "a start that fails lets go of the run"


def unreachable(run: Run) -> None:
    raise UnavailableError("kafka.bootstrap_servers: expected an answer, got none")


def moved(run: Run) -> None:
    run.dir.rename(run.dir.with_name("elsewhere"))


def replaced(run: Run) -> None:
    moved(run)
    run.dir.mkdir()


@pytest.mark.parametrize(("happens", "got"), [(moved, "none"), (replaced, "another one")])
async def test_a_start_that_fails_because_its_directory_was_moved_tells_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Run], None], got: str
) -> None:
    def apply(run: Run) -> None:
        happens(run)
        unreachable(run)

    at_topics(monkeypatch, apply)
    run = make_far_run(tmp_path)
    run.dir.mkdir()
    with pytest.raises(UnavailableError, match=rf"{run.dir}: expected the directory that this run began with, got {got} "):
        await drive(run, [STAGE], LogView(run, []), run.kafka)


@pytest.mark.parametrize("happens", [moved, replaced, lambda run: shutil.rmtree(run.dir)])
async def test_a_directory_that_is_moved_while_the_topics_are_applied_ends_the_run_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Run], None]
) -> None:
    at_topics(monkeypatch, happens)
    run = make_far_run(tmp_path)
    run.dir.mkdir()
    with pytest.raises(UnavailableError, match=rf"{run.dir}: expected the directory that this run began with, got "):
        async with asyncio.timeout(30):
            await drive(run, [STAGE], LogView(run, []), run.kafka)
    assert members(run.directory) == []


async def test_the_first_run_in_a_directory_tells_its_own_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_topics(monkeypatch, unreachable)
    run = make_far_run(tmp_path)
    with pytest.raises(UnavailableError, match=r"kafka\.bootstrap_servers: expected an answer, got none"):
        await drive(run, [STAGE], LogView(run, []), run.kafka)
