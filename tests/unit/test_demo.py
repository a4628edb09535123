"""The demo's own part: what it starts it stops, every ending has its exit code, and the last line is JSON whatever happened."""

import asyncio
import io
import logging
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

import gagar.cli.up.demo_run as demo_run
from gagar.audit.fold import Audit
from gagar.cli.up.command import LogView
from gagar.cli.up.demo import demo, fresh_name
from gagar.cli.up.demo_run import DemoView, exit_code, logged_to, shown_path
from gagar.cli.up.pipeline import drive
from gagar.cli.up.stage_processes import stage_processes
from gagar.config import KafkaTable, Run
from gagar.errors import ConfigError, UnavailableError
from gagar.processes.log_tail import last_words
from gagar.processes.shutdown import interruption
from gagar.processes.supervised import ProcessSpec
from gagar.report.display import LINE_S, REFRESH_S, display_on
from gagar.report.progress import Progress
from gagar.report.terminal import Plan, Screen, StageRow
from gagar.stream.handlers import Delivery
from gagar.stream.spec import Stage, Topic
from tests.builders import make_delivery, make_outcome, make_request, make_run, make_version

TOPICS: dict[str, list[Any]] = {
    "rollout-requests": [make_request(name, i) for name in ("e-0", "t-0", "e-1") for i in range(4)],
    "outcomes": [
        make_outcome("e-0", "evaluated", num_passed=1),
        make_outcome("t-0", "dropped", reason="all_failed"),
        make_outcome("e-1", "evaluated", step=5, num_passed=3),
    ],
    "policy-versions": [make_version(step, is_last=step == 5) for step in range(6)],
}


class FakeState(msgspec.Struct, frozen=True, kw_only=True):
    """A process as the supervisor tells of it."""

    name: str = "verifier"
    pid: int | None = 1
    restarts: int = 3
    exit_code: int | None = None


class FakeSupervisor:
    """Ends at once with `code`, or never."""

    made: "list[FakeSupervisor]" = []  # noqa: RUF012 - set anew by each test
    code: int | None = 0
    error: Exception | None = None
    is_in_use = False
    sent: signal.Signals | None = None
    """That this process gets soon after `sent_in`."""
    sent_in = "start"

    def __init__(self, specs: Sequence[ProcessSpec], directory: Path, watch: object, *, on_line: object, held: object) -> None:
        self.specs, self.directory = specs, directory
        self.calls: list[str] = []
        self.made.append(self)

    async def hold(self) -> None:
        self._called("hold")
        if self.is_in_use:
            raise UnavailableError("run: expected to be free, got in use by another gagar")

    async def start(self) -> None:
        self._called("start")
        if self.error is not None:
            raise self.error

    async def wait(self) -> int:
        if self.code is None:
            await asyncio.Event().wait()
        return self.code or 0

    async def stop(self) -> None:
        self.calls.append("stop")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.sent is not None and self.sent_in == name:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), self.sent)

    def states(self) -> list[FakeState]:
        return [FakeState(), FakeState(name="learner", pid=None, restarts=0, exit_code=3)]


class FakeAdmin:
    """A cluster without lag."""

    def __init__(self, kafka: KafkaTable) -> None:
        self.kafka = kafka

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *error: object) -> None: ...

    def lags(self, run_name: str, stage: Stage) -> dict[str, int]:
        return {topic.name: 0 for topic in stage.inputs}


async def fake_scan(
    kafka: KafkaTable, run_name: str, topics: Sequence[Topic], *, follow: bool = False
) -> AsyncGenerator[Delivery[Any], None]:
    for topic in topics:
        for offset, record in enumerate(TOPICS.get(topic.name, [])):
            yield make_delivery(record, topic.name, offset)
    if follow:
        await asyncio.Event().wait()


async def fake_audit(run: Run, *, is_in_flight_allowed: bool = False) -> Any:
    audit = Audit()
    for topic, records in TOPICS.items():
        for record in records:
            audit.apply(make_delivery(record, topic))
    return audit.result(is_in_flight_allowed=is_in_flight_allowed)


def make_screen(run_name: str = "try") -> Screen:
    row = StageRow(name="advantage-publisher", num_up=1, num_processes=1, num_restarts=0, lag=0, rate=0.0)
    snapshot = Progress().snapshot()
    plan = Plan(run_name=run_name, num_steps=5, stages=(), log_dir="logs")
    return Screen(plan=plan, phase="training", elapsed_s=1.0, stages=[row], snapshot=snapshot)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> type[FakeSupervisor]:
    """The demo among fakes of everything outside this process."""
    fresh = type("Fresh", (FakeSupervisor,), {"made": []})
    monkeypatch.setattr("gagar.cli.up.pipeline.Supervisor", fresh)
    monkeypatch.setattr("gagar.cli.up.pipeline.apply_topology", lambda run: [])
    monkeypatch.setattr("gagar.cli.up.demo_run.Admin", FakeAdmin)
    monkeypatch.setattr("gagar.stream.kafka.client.scan", fake_scan)
    monkeypatch.setattr("gagar.cli.up.demo_run.run_audit", fake_audit)
    monkeypatch.setattr("gagar.report.page.draw_pictures", lambda snapshot: [])
    monkeypatch.setattr(demo_run, "memory_of", lambda run: 5)
    return fresh


async def run_fake(directory: Path) -> tuple[int, str]:
    console = Console(file=io.StringIO(), highlight=False, soft_wrap=True)
    run = make_run(directory)
    code = await drive(
        run, stage_processes(("--run", "x"), {}, run), DemoView(run, console), KafkaTable(bootstrap_servers="broker:1")
    )
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def last_line(text: str) -> dict[str, Any]:
    line: dict[str, Any] = msgspec.json.decode(text.splitlines()[-1])
    return line


async def test_a_planned_end_is_audited_reported_and_summed_up(
    supervisor: type[FakeSupervisor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = await run_fake(tmp_path)
    line = last_line(capsys.readouterr().out)
    assert code == 0
    assert (line["audit"], line["steps"], line["pass_rate_first"], line["pass_rate_last"]) == ("clean", 5, 0.25, 0.75)
    assert (line["groups_requested"], line["groups_evaluated"], line["groups_dropped"]) == (3, 2, {"all_failed": 1})
    assert line["report"] == str(tmp_path / "runs" / "try" / "report.html")
    assert await asyncio.to_thread(os.path.exists, line["report"])
    assert "held-out tasks, step 5" in shown
    (made,) = supervisor.made
    assert (made.calls, made.directory) == (["hold", "start", "stop"], tmp_path / "runs" / "try")
    assert all(spec.command[-2:] == ("--run", "x") for spec in made.specs)


async def test_broken_laws_are_named_in_the_last_line(
    supervisor: type[FakeSupervisor], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOPICS, "outcomes", [*TOPICS["outcomes"], make_outcome("e-0", "evaluated")])
    code, _ = await run_fake(tmp_path)
    assert code == 1
    assert "group e-0" in last_line(capsys.readouterr().out)["audit"]


@pytest.mark.parametrize(("stages_code", "expected"), [(1, 1), (2, 2)])
async def test_a_stage_that_gave_up_is_an_error_that_names_the_logs(
    supervisor: type[FakeSupervisor], tmp_path: Path, capsys: pytest.CaptureFixture[str], stages_code: int, expected: int
) -> None:
    supervisor.code = stages_code
    code, _ = await run_fake(tmp_path)
    captured = capsys.readouterr()
    assert code == expected
    logs = tmp_path / "runs" / "try" / "logs"
    assert f"expected the planned end, got the end of learner (3); see the logs in {logs}" in captured.err
    assert "learner: no log: No such file or directory" in captured.err
    assert last_line(captured.out)["run"] == "try"


async def test_a_run_in_which_nothing_moves_is_an_error_that_names_the_logs(
    supervisor: type[FakeSupervisor], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.code = None
    monkeypatch.setattr("gagar.report.watch.STALL_S", -1.0)
    monkeypatch.setattr("gagar.report.display.LineDisplay.interval_s", 0.01)
    code, _ = await run_fake(tmp_path)
    captured = capsys.readouterr()
    assert code == 1
    assert "expected progress, got no record on any topic for" in captured.err
    assert "(restarts: verifier 3); see the logs in" in captured.err


async def test_ctrl_c_stops_cleanly_and_still_sums_up(
    supervisor: type[FakeSupervisor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor.code = None
    supervisor.sent = signal.SIGINT
    code, _ = await run_fake(tmp_path)
    assert code == 130
    assert last_line(capsys.readouterr().out)["groups_requested"] == 3
    assert supervisor.made[0].calls == ["hold", "start", "stop"]


async def test_what_was_started_is_stopped_when_the_start_fails(supervisor: type[FakeSupervisor], tmp_path: Path) -> None:
    supervisor.error = ConfigError("grader.kind: expected rules, got x")
    with pytest.raises(ConfigError, match=r"grader\.kind"):
        await run_fake(tmp_path)
    assert supervisor.made[0].calls == ["hold", "start", "stop"]


async def test_a_run_in_use_is_refused_before_anything_is_applied_or_said(
    supervisor: type[FakeSupervisor], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gagar.cli.up.pipeline.apply_topology", lambda run: pytest.fail("applied"))
    supervisor.is_in_use = True
    for view in (DemoView(make_run(tmp_path), Console(file=io.StringIO())), LogView(make_run(tmp_path), [])):
        with pytest.raises(UnavailableError, match="in use by another gagar"):
            await drive(make_run(tmp_path), [], view, KafkaTable(bootstrap_servers="broker:1"))
    assert [made.calls for made in supervisor.made] == [["hold"], ["hold"]]
    assert capsys.readouterr() == ("", "")


async def test_why_a_stage_restarts_is_on_the_screen_and_on_stderr(
    supervisor: type[FakeSupervisor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, console = make_run(tmp_path), Console(file=io.StringIO(), soft_wrap=True)
    view = DemoView(run, console)
    with logged_to(tmp_path / "demo.log", view.tell):
        logging.getLogger("gagar.processes.supervised").warning("stage died name=learner code=1 last=no space left on device")
        await drive(run, [], view, KafkaTable(bootstrap_servers="broker:1"))
    assert capsys.readouterr().err.splitlines()[0] == "stage died name=learner code=1 last=no space left on device"
    assert "stage died name=learner code=1 last=no space left on device" in console.file.getvalue()  # type: ignore[attr-defined]


async def test_a_report_that_cannot_be_written_is_an_error_and_the_summary_still_comes(
    supervisor: type[FakeSupervisor], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo_run, "write_run_report", full)
    code, _ = await run_fake(tmp_path)
    captured = capsys.readouterr()
    assert code == 0
    assert "error: report: expected to be written, got [Errno 28] No space left on device" in captured.err
    assert (last_line(captured.out)["report"], last_line(captured.out)["steps"]) == ("", 5)


@pytest.mark.parametrize(("hangs_up_in", "calls"), [("hold", ["hold", "stop"]), ("start", ["hold", "start", "stop"])])
async def test_a_terminal_that_was_closed_still_gets_its_run_reported(
    supervisor: type[FakeSupervisor],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    hangs_up_in: str,
    calls: list[str],
) -> None:
    """Before the stages run as well, which then are not started."""
    supervisor.code = None if hangs_up_in == "start" else 0
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    supervisor.sent, supervisor.sent_in = signal.SIGHUP, hangs_up_in
    try:
        code, _ = await asyncio.wait_for(run_fake(tmp_path), 60)
    finally:
        signal.signal(signal.SIGHUP, before)
    captured = capsys.readouterr()
    assert (code, captured.err, caplog.messages) == (130, "stopping the stages ...\n", [])
    assert last_line(captured.out)["groups_requested"] == 3
    assert (tmp_path / "runs" / "try" / "report.html").exists()
    assert supervisor.made[0].calls == calls


async def test_the_first_signal_asks_and_the_second_one_ends() -> None:
    event = interruption()
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(5):
        await event.wait()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


@pytest.mark.parametrize(
    ("ending", "stages_code", "is_clean", "expected"),
    [
        ("planned", 0, True, 0),
        ("planned", 0, False, 1),
        ("failed", 2, True, 2),
        ("failed", 0, True, 1),
        ("stalled", 0, True, 1),
        ("interrupted", 0, True, 130),
        ("interrupted", 0, False, 130),
    ],
)
def test_only_a_planned_end_with_a_clean_audit_is_a_success(
    ending: Any, stages_code: int, is_clean: bool, expected: int
) -> None:
    assert exit_code(ending, stages_code, is_clean=is_clean) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo\n\n", "two"),
        (b"", "nothing logged"),
        (b"x" * 10_000 + b"\nlast", "last"),
        (b"\xff\xfe bad", "\ufffd\ufffd bad"),
    ],
)
def test_the_last_words_of_a_log_are_its_last_line(tmp_path: Path, data: bytes, expected: str) -> None:
    (tmp_path / "a.log").write_bytes(data)
    assert last_words(tmp_path / "a.log") == expected


def test_logging_goes_to_the_file_and_comes_back(tmp_path: Path) -> None:
    before = logging.getLogger().handlers[:]
    told: list[str] = []
    with logged_to(tmp_path / "demo.log", told.append):
        logging.getLogger("gagar.test").warning("group expired group=%s", "g7")
        for code in (1, 1, 2):
            logging.getLogger("gagar.processes.supervised").warning("stage died code=%d", code)
        logging.getLogger("gagar.broker.watch").info("broker runs")
    assert logging.getLogger().handlers == before
    assert told == ["stage died code=1", "stage died code=2"]
    assert "WARNING gagar.test group expired group=g7" in (tmp_path / "demo.log").read_text(encoding="utf-8")


def test_paths_are_shown_as_short_as_they_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "a" / "b") == os.path.join("a", "b")
    assert shown_path(Path("/elsewhere")) == "/elsewhere"


def test_a_terminal_is_redrawn_and_a_pipe_gets_lines() -> None:
    pipe = Console(file=io.StringIO(), force_terminal=False)
    with display_on(pipe) as display:
        assert display.interval_s == LINE_S
        display.show(make_screen(run_name="[bold]"))
    assert pipe.file.getvalue().count("\n") == 1  # type: ignore[attr-defined]
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    with display_on(terminal) as display:
        assert display.interval_s == REFRESH_S
        display.show(make_screen())
        display.show(make_screen())
    assert terminal.file.getvalue().count("advantage-publisher") >= 2  # type: ignore[attr-defined]


def test_a_long_line_for_logs_is_not_wrapped() -> None:
    pipe = Console(file=io.StringIO(), force_terminal=False, width=20, soft_wrap=True)
    with display_on(pipe) as display:
        display.show(make_screen())
    assert pipe.file.getvalue().count("\n") == 1  # type: ignore[attr-defined]


def test_run_names_are_fresh_each_second_and_sort_by_time() -> None:
    names = [fresh_name(datetime(2026, 11, 29, 20, 12, second, tzinfo=UTC)) for second in (4, 40)]
    assert names == ["nano-20261129-201204", "nano-20261129-201240"]


def test_the_command_hands_overrides_on_behind_its_own_run_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []

    def record(overrides: tuple[str, ...]) -> int:
        seen.append(overrides)
        return 7

    monkeypatch.setattr(demo_run, "run_demo", record)
    result = CliRunner().invoke(demo, ["--set", "training.num_steps=3", "--set", "grader.kind=none"], standalone_mode=False)
    assert result.return_value == 7
    assert seen[0][0].startswith("run.name=nano-")
    assert seen[0][1:] == ("training.num_steps=3", "grader.kind=none")
