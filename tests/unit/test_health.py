"""What a process tells of itself, and how that is judged: what only a new start mends is unhealthy, what waits is not."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gagar.cli import health as health_module
from gagar.cli.health import health
from gagar.errors import ConfigError, UnavailableError
from gagar.health import reporter as reporter_module
from gagar.health.judging import FROZEN_S, SILENT_S, START_S, judged
from gagar.health.reporter import BLOCKED_S, HealthReporter, read_files, reporting
from gagar.health.vitals import HealthFile, Vitals
from gagar.processes.identity import identity
from gagar.stream.handlers import Delivery, Effect, Output, Source
from gagar.stream.memory.transport import MemoryTransport
from gagar.stream.runtime import StageRuntime
from tests.builders import make_request
from tests.contract.world import DEAD_LETTERS, FAST, OUTCOMES, REQUESTS, MemoryWorld, Process, make_stage, write

NOW = 1000.0
SOON_S = 10.0


def make_vitals(**fields: Any) -> Vitals:
    """Of a stage that reads and has nothing to do."""
    healthy: dict[str, Any] = {"at": NOW, "phase": "working", "is_member": True, "num_partitions": 4}
    return Vitals(**{**healthy, "polled_at": NOW - 0.5, "active_at": NOW - 0.5, "patience_s": 120.0, "lag": 0, **fields})


def make_file(vitals: Vitals | None, **fields: Any) -> HealthFile:
    facts: dict[str, Any] = {"run": "nano-1", "stage": "verifier", "pid": 7, "identity": "x", "started_at": NOW - 60.0}
    return HealthFile(**{**facts, "written_at": NOW - 1.0, "vitals": vitals, **fields})


@pytest.mark.parametrize(
    ("file", "state", "words"),
    [
        (make_file(make_vitals()), "fine", "nothing in work"),
        (make_file(make_vitals(num_in_work=3)), "fine", "at work"),
        (make_file(None), "starting", "for 60 s"),
        (make_file(make_vitals(phase="starting", is_member=False)), "starting", "for 60 s"),
        (make_file(make_vitals(phase="stopping")), "stopping", "work in progress ends"),
        (make_file(make_vitals(is_member=False)), "waiting", "no place in the stage's group"),
        (make_file(make_vitals(num_waiting=2)), "waiting", "2 of 4 partitions cannot be read"),
        (make_file(make_vitals(silent_s=SILENT_S + 1)), "waiting", "no answer for 11 s"),
        (make_file(make_vitals(is_breaker_open=True)), "outage", "something outside is down"),
    ],
)
def test_a_process_that_lives_is_healthy_whatever_it_waits_for(file: HealthFile, state: str, words: str) -> None:
    found = judged(file, NOW)
    assert (found.state, found.is_healthy) == (state, True)
    assert words in found.line()


@pytest.mark.parametrize(
    ("file", "state", "words"),
    [
        (
            make_file(make_vitals(at=NOW - BLOCKED_S - 1), busy_with="task=a at=b.py:3"),
            "blocked",
            "held for 21 s by task=a at=b.py:3",
        ),
        (make_file(make_vitals(), written_at=NOW - FROZEN_S - 1), "frozen", "told nothing for 21 s"),
        (make_file(make_vitals(active_at=NOW - 121.0)), "stuck", "work did not go on for 121 s"),
        (make_file(None, started_at=NOW - START_S - 1), "stuck", "starting for 901 s"),
    ],
)
def test_what_only_a_new_start_mends_is_unhealthy(file: HealthFile, state: str, words: str) -> None:
    found = judged(file, NOW)
    assert (found.state, found.is_healthy) == (state, False)
    assert words in found.line()


def test_a_lane_that_waits_for_the_log_is_not_stuck_however_long_that_takes() -> None:
    assert judged(make_file(make_vitals(num_waiting=4, active_at=NOW - 9999.0)), NOW).is_healthy


def told(directory: Path) -> HealthFile:
    [file] = read_files(directory)
    return file


async def until_told(directory: Path, state: str) -> None:
    """Until the only process there is in this state."""
    deadline = time.monotonic() + SOON_S
    found = ""
    while time.monotonic() < deadline:
        for file in read_files(directory):
            found = judged(file, time.monotonic()).state
        if found == state:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"expected {state}, got {found}")


async def test_a_loop_that_is_blocked_is_told_with_its_task_while_it_is_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "BLOCKED_S", 0.2)
    reporter = HealthReporter("t", "verifier", tmp_path, every_s=0.02)
    reporter.start()
    reporter.follow(lambda: make_vitals(at=time.monotonic()))

    async def block() -> None:
        deadline = time.monotonic() + SOON_S
        while not seen or "test_health.py:" not in seen[-1].busy_with:  # another file: where the reading below was met
            assert time.monotonic() < deadline
            spin_until = time.monotonic() + 0.1
            while time.monotonic() < spin_until:
                pass
            seen.extend(read_files(tmp_path))  # still blocked: once this has ended the thread tells of no task any more

    seen: list[HealthFile] = []
    await asyncio.create_task(block(), name="verifier trajectories[0]@7")
    file = seen[-1]
    assert "task=verifier trajectories[0]@7" in file.busy_with
    assert file.vitals is not None
    assert file.written_at - file.vitals.at > 0.2
    async with asyncio.timeout(10):
        while told(tmp_path).busy_with != "":
            await asyncio.sleep(0.02)
    reporter.close()


def test_the_file_goes_with_a_process_that_ends_in_good_order(tmp_path: Path) -> None:
    directory = tmp_path / "made"
    with reporting("t", "grader", directory):
        deadline = time.monotonic() + SOON_S
        while not directory.is_dir() or not read_files(directory):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert told(directory).stage == "grader"
        assert directory.stat().st_mode & 0o777 == 0o700
    assert list(directory.iterdir()) == []


def test_a_process_that_was_killed_is_none_and_its_file_goes_with_the_next_start(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE) as process:
        born = identity(process.pid) or ""
        path = tmp_path / "t.grader.1.json"
        path.write_bytes(msgspec.json.encode(make_file(None, pid=process.pid, identity=born)))
        assert told(tmp_path).pid == process.pid
        process.kill()
    assert read_files(tmp_path) == []
    with reporting("t", "verifier", tmp_path):
        deadline = time.monotonic() + SOON_S
        while path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_disk_that_takes_no_file_is_told_once_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    reporter = HealthReporter("t", "verifier", tmp_path / "file" / "below", every_s=0.01)
    reporter.start()
    time.sleep(0.1)
    reporter.close()
    assert caplog.text.count("health not told") == 1


class Idle(Effect):
    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        return []


class Outage(Effect):
    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        raise UnavailableError("sandbox: expected an answer, got none")


def state_of(process: Process) -> str:
    vitals: Vitals = process.runtime.vitals()
    now = time.monotonic()
    return judged(make_file(vitals, written_at=now, started_at=now), now).state


async def test_a_stage_that_lost_its_place_waits() -> None:
    world = MemoryWorld()
    async with Process(world, make_stage("effect"), Idle()) as process:
        await process.until(lambda: state_of(process) == "fine")
        membership: Any = process.runtime._membership
        membership.is_settled = False
        assert state_of(process) == "waiting"
        membership.is_settled = True


async def test_a_stage_whose_log_does_not_answer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MemoryWorld()
    async with Process(world, make_stage("effect"), Idle()) as process:
        await process.until(lambda: state_of(process) == "fine")

        async def no_answer(transport: MemoryTransport, *arguments: Any) -> Any:
            raise UnavailableError("producer: expected an answer, got none")

        monkeypatch.setattr(MemoryTransport, "start_producer", no_answer)
        for lane in process.runtime.lanes.values():
            lane.fail(UnavailableError("poll: expected an answer, got none"))
        await process.until(lambda: state_of(process) == "waiting")
        monkeypatch.undo()
        await process.until(lambda: state_of(process) == "fine")


async def test_an_open_breaker_is_an_outage() -> None:
    world = MemoryWorld()
    async with Process(world, make_stage("effect"), Outage()) as process:
        await write(world, [make_request("g")])
        await process.until(lambda: state_of(process) == "outage")


class Endless(Source):
    """A source to which nothing is ever due."""

    def restore(self, cursor: bytes) -> None: ...

    def next_unit(self) -> tuple[Sequence[Output], bytes] | None:
        return None

    @property
    def is_done(self) -> bool:
        return False


async def test_a_source_must_read_its_tables() -> None:
    world = MemoryWorld()
    stage = make_stage("source", inputs=(), tables=(OUTCOMES,), outputs=(REQUESTS,))
    async with Process(world, stage, Endless()) as process:
        await process.until(lambda: state_of(process) == "fine")
        await process.until(lambda: process.runtime.vitals().active_at is not None)
        vitals = process.runtime.vitals()
        later = vitals.polled_at + vitals.patience_s + 1.0
        file = make_file(msgspec.structs.replace(vitals, at=later), written_at=later, started_at=later)
        assert judged(file, later).state == "stuck"


async def test_a_stage_tells_by_itself_from_before_it_joins(tmp_path: Path) -> None:
    world, stop = MemoryWorld(), asyncio.Event()
    with reporting("t", "under-test", tmp_path) as reporter:
        await until_told(tmp_path, "starting")
        transport = world.transport()
        await transport.open()
        runtime = StageRuntime(make_stage("effect"), Idle(), transport, DEAD_LETTERS, FAST, health=reporter)
        task = asyncio.create_task(runtime.run(stop))
        await until_told(tmp_path, "fine")
        stop.set()
        await task
        await transport.close()


def run_command(directory: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(health_module, "health_directory", lambda: directory)
    return CliRunner().invoke(health, list(arguments))


def live_file(vitals: Vitals, **fields: Any) -> bytes:
    """Of a process that lives: this one."""
    now, pid = time.monotonic(), os.getpid()
    file = make_file(msgspec.structs.replace(vitals, at=now), pid=pid, identity=identity(pid), started_at=now, written_at=now)
    return msgspec.json.encode(msgspec.structs.replace(file, **fields))


def test_the_command_exits_with_0_if_all_are_healthy_and_tells_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vitals = make_vitals(is_member=False)
    (tmp_path / "a.json").write_bytes(live_file(vitals))
    (tmp_path / "b.json").write_bytes(live_file(vitals, stage="grader"))
    found = run_command(tmp_path, monkeypatch)
    assert found.exit_code == 0
    assert [line.split(" ")[0] for line in found.output.splitlines()] == ["grader", "verifier"]
    assert "waiting: for the log" in found.output


def test_the_command_exits_with_1_if_one_is_not_healthy_and_0_for_another_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_bytes(live_file(make_vitals(), written_at=time.monotonic() - 100.0))
    (tmp_path / "b.json").write_bytes(live_file(make_vitals(active_at=None), stage="grader"))
    assert run_command(tmp_path, monkeypatch).exit_code == 1
    assert run_command(tmp_path, monkeypatch, "verifier").exit_code == 1
    assert run_command(tmp_path, monkeypatch, "grader").exit_code == 0


def test_the_command_exits_with_1_if_there_is_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_command(tmp_path / "none", monkeypatch, "grader")
    assert (found.exit_code, found.output) == (1, "grader: expected a process on this machine, got none\n")


def test_the_last_line_with_json_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_bytes(live_file(make_vitals(active_at=None, lag=12)))
    told = json.loads(run_command(tmp_path, monkeypatch, "--json").output.splitlines()[-1])
    assert told["is_healthy"] is True
    [process] = told["processes"]
    assert (process["stage"], process["state"], process["lag"]) == ("verifier", "fine", 12)
    assert json.loads(run_command(tmp_path / "none", monkeypatch, "--json").output) == {"is_healthy": False, "processes": []}


def test_an_unknown_stage_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "health_directory", lambda: tmp_path)
    with pytest.raises(ConfigError, match="did you mean verifier"):
        CliRunner().invoke(health, ["verifer"], catch_exceptions=False)
