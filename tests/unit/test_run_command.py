"""`gagar run STAGE`, started by hand: what is said when the local broker goes, and who is told."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gagar.broker.address import STATE_FILE, BrokerState, broker_dir
from gagar.cli import run as run_module
from gagar.cli.run import watch_local_broker
from gagar.config import Run
from gagar.errors import ClusterRefusalError, ConfigError, UnavailableError
from gagar.processes.identity import identity
from gagar.processes.orphan_cleanup import VARIABLE
from gagar.stream.spec import Stage
from tests.runs import make_run, write_run
from topology.resources import Resources

FEW_SECONDS = 5.0


@pytest.fixture(autouse=True)
def started_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage has the settings of its run, and nobody else starts it."""

    async def same(resources: Resources) -> list[str]:
        return []

    monkeypatch.setattr(run_module, "check_settings", same)
    monkeypatch.setattr(run_module, "configure_logs", lambda log_format: None)
    for name in (VARIABLE, "RANK"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def broker_process(directory: Path) -> Iterator[None]:
    """A process that `broker.json` names as the local broker, for the length of a `with`."""
    with subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"]) as process:
        born = identity(process.pid)
        assert born is not None
        state = BrokerState(address="127.0.0.1:1", controller_address="127.0.0.1:2", pid=process.pid, identity=born)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / STATE_FILE).write_bytes(msgspec.json.encode(state))
        try:
            yield
        finally:
            process.kill()


class Looks:
    """Stands for `time.sleep` in the watching thread: hurries it, counts its looks and ends it."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._count = 0

    def sleep(self, seconds: float) -> None:
        assert seconds <= FEW_SECONDS
        self._count += 1
        if self.ended.wait(0.005):
            raise SystemExit

    def wait(self, count: int = 3) -> None:
        """Until so many more have ended."""
        last, deadline = self._count + count, time.monotonic() + 10
        while self._count < last:
            assert time.monotonic() < deadline, "nobody looks"
            time.sleep(0.005)


@contextmanager
def watching(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    looks = Looks()
    monkeypatch.setattr(run_module, "time", looks)

    def watch() -> None:
        with suppress(SystemExit):
            watch_local_broker(run)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield looks
    finally:
        looks.ended.set()
        thread.join()


def test_a_local_broker_that_has_gone_is_said_once_with_what_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path)
    expected = (
        f"local broker gone; waiting for it: start it with `gagar broker start --set run.dir={run.dir}` or `gagar up`, "
        "or end this with Ctrl-C"
    )
    with broker_process(broker_dir(run)), watching(run, monkeypatch) as looks:
        looks.wait()
        assert caplog.messages == []
    with watching(run, monkeypatch) as looks:
        for times in (1, 2):
            looks.wait()
            assert caplog.messages == [expected] * times
            with broker_process(broker_dir(run)):
                looks.wait()
                assert caplog.messages == [expected] * times
        looks.wait()
    assert caplog.messages == [expected] * 3
    assert {record.levelname for record in caplog.records} == {"WARNING"}


@pytest.mark.parametrize(
    ("variable", "servers", "is_told"),
    [("", "", True), (VARIABLE, "", False), ("RANK", "", False), ("", "kafka-1:9092", False)],
)
def test_only_a_stage_that_is_started_by_hand_watches_and_only_the_local_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, servers: str, is_told: bool
) -> None:
    async def unreachable(run: Run) -> bool:
        raise UnavailableError("no cluster")

    watched, served, ends = threading.Event(), [], threading.Event()
    monkeypatch.setattr(run_module, "tell_planned_end", unreachable)
    monkeypatch.setattr(run_module, "watch_local_broker", lambda run: watched.set())
    monkeypatch.setattr(run_module, "end_with_run", lambda run: ends.set())
    monkeypatch.setattr(run_module, "check_cluster_works", lambda run, stage: None)
    monkeypatch.setattr(run_module, "serve", lambda stage, resources: served.append(stage.name))
    if variable:
        monkeypatch.setenv(variable, os.fspath(tmp_path))
    arguments = ["verifier", "--run", str(write_run(tmp_path)), "--set", f"kafka.bootstrap_servers={servers}"]
    result = CliRunner().invoke(run_module.run, arguments, catch_exceptions=False)
    assert (result.exit_code, served) == (0, ["verifier"])
    assert watched.wait(5 if is_told else 0) == is_told
    is_by_hand = variable == ""
    assert ends.wait(5 if is_by_hand else 0) == is_by_hand


@pytest.mark.parametrize(("is_past_end", "is_ended"), [(False, True), (True, False)])
def test_a_stage_by_hand_ends_with_its_run_unless_it_was_started_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_past_end: bool, is_ended: bool
) -> None:
    async def tell(run: Run) -> bool:
        return is_past_end

    ends = threading.Event()
    monkeypatch.setattr(run_module, "tell_planned_end", tell)
    monkeypatch.setattr(run_module, "check_cluster_works", lambda run, stage: None)
    monkeypatch.setattr(run_module, "serve", lambda stage, resources: None)
    monkeypatch.setattr(run_module, "end_with_run", lambda run: ends.set())
    arguments = ["verifier", "--run", str(write_run(tmp_path)), "--set", "kafka.bootstrap_servers=kafka-1:9092"]
    assert CliRunner().invoke(run_module.run, arguments, catch_exceptions=False).exit_code == 0
    assert ends.wait(5 if is_ended else 0) == is_ended


def test_the_end_of_the_run_is_a_sigterm_to_the_process_and_a_refusal_is_left_to_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def at_end(run: Run) -> bool:
        return True

    async def refused(run: Run) -> bool:
        raise ConfigError("topic policy-versions: expected it, got none")

    got: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: got.append((pid, number)))
    run_module.end_with_run(make_run(tmp_path), 0.0, refused)
    assert got == []
    assert "planned end not watched error=topic policy-versions" in caplog.text
    run_module.end_with_run(make_run(tmp_path), 0.0, at_end)
    assert got == [(os.getpid(), signal.SIGTERM)]


@pytest.mark.parametrize(
    ("name", "is_taken"), [("", True), ("worker-1.eu_west", True), ("worker 1", False), ("w" * 201, False)]
)
def test_a_member_has_a_name_that_a_cluster_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_taken: bool
) -> None:
    members: list[str] = []
    monkeypatch.setenv(VARIABLE, os.fspath(tmp_path))
    monkeypatch.setattr(run_module, "serve", lambda stage, resources: members.append(resources.member))
    result = CliRunner().invoke(run_module.run, ["verifier", "--run", str(write_run(tmp_path)), "--member", name])
    error = f"--member: expected at most 200 ASCII letters, digits, '.', '_' and '-', got {name!r}"
    assert (members, str(result.exception or "")) == (([name], "") if is_taken else ([], error))


@pytest.mark.parametrize("variable", ["", VARIABLE, "RANK"])
def test_no_stage_whoever_starts_it_begins_with_settings_that_are_not_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    async def refused(resources: Resources) -> list[str]:
        raise ConfigError("training.group_size: was 8, now 4")

    served: list[str] = []
    monkeypatch.setattr(run_module, "check_settings", refused)
    monkeypatch.setattr(run_module, "check_cluster_works", lambda run, stage: None)
    monkeypatch.setattr(run_module, "serve", lambda stage, resources: served.append(stage.name))
    if variable:
        monkeypatch.setenv(variable, os.fspath(tmp_path))
    path = write_run(tmp_path)
    arguments = ["verifier", "--run", str(path), "--set", "kafka.bootstrap_servers=kafka-1:9092"]
    assert isinstance(CliRunner().invoke(run_module.run, arguments).exception, ConfigError)
    assert served == []
    assert not (tmp_path / ".gagar").exists()


@pytest.mark.parametrize(("variable", "is_tried"), [("", True), (VARIABLE, False), ("RANK", False)])
def test_a_stage_that_is_started_by_hand_is_not_served_on_a_cluster_where_none_can_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, is_tried: bool
) -> None:
    """`gagar up` has tried it for the others, once."""

    async def unreachable(run: Run) -> bool:
        raise UnavailableError("no cluster")

    def refused(run: Run, stage: Stage) -> None:
        raise ClusterRefusalError("transactions: expected some, got none")

    served: list[str] = []
    monkeypatch.setattr(run_module, "tell_planned_end", unreachable)
    monkeypatch.setattr(run_module, "check_cluster_works", refused)
    monkeypatch.setattr(run_module, "serve", lambda stage, resources: served.append(stage.name))
    if variable:
        monkeypatch.setenv(variable, os.fspath(tmp_path))
    arguments = ["verifier", "--run", str(write_run(tmp_path)), "--set", "kafka.bootstrap_servers=kafka-1:9092"]
    result = CliRunner().invoke(run_module.run, arguments)
    assert isinstance(result.exception, ClusterRefusalError) == is_tried
    assert served == ([] if is_tried else ["verifier"])
