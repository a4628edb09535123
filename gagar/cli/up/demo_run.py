"""What is `gagar demo`'s own: the screen of a running pipeline, then the audit, the report, the last line.

In: overrides of the packaged run file. Out: an exit code; stdout ends with the summary as JSON.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import msgspec
from rich.console import Console

from gagar.broker.address import broker_dir, running_state
from gagar.cli.audit import run_audit
from gagar.cli.report import History, audit_text, read_history, scan_of, topics_read, write_run_report
from gagar.cli.run_file import DEFAULT_RUN, check_dir, check_run, open_run
from gagar.cli.up.pipeline import run_pipeline
from gagar.cli.up.stage_processes import stage_processes
from gagar.config import KafkaTable, Run
from gagar.processes.log_tail import last_words
from gagar.processes.shutdown import EXIT_INTERRUPTED
from gagar.processes.supervised import ProcessState
from gagar.processes.supervisor import Supervisor
from gagar.report.display import display_on
from gagar.report.summary import Summary, summarize, summary_rows
from gagar.report.terminal import Plan
from gagar.report.watch import Ending, Watch, resident_bytes
from gagar.stream.kafka.admin import Admin
from topology.stages import STAGES

EXIT_STALLED = 1
SUPERVISION = ("gagar.processes", "gagar.broker")
"""Loggers of what starts stages and broker again."""


def run_demo(overrides: tuple[str, ...]) -> int:
    """The whole demo; raises GagarError if it cannot start or go on."""
    run = open_run(DEFAULT_RUN, overrides)
    check_run(run)
    check_dir(run)
    arguments = ("--run", DEFAULT_RUN, *(f"--set={override}" for override in overrides))
    specs = stage_processes(arguments, {}, run)
    view = DemoView(run, Console(highlight=False))
    with logged_to(run.directory / "demo.log", view.tell):
        return run_pipeline(run, specs, view)


def memory_of(run: Run) -> int:
    """Resident bytes of all processes of the run on this machine."""
    state = None if run.kafka.bootstrap_servers else running_state(broker_dir(run))
    return resident_bytes(state.pid if state else None)


@contextmanager
def logged_to(path: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """This process logs into a file meanwhile, since a line on the screen would break the picture; `tell` is called with what
    its supervision of stages and broker warns of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    before = root.handlers[:]
    handler = QuietFileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root.handlers[:] = [handler, TroubleHandler(tell)]
    try:
        yield
    finally:
        root.handlers[:] = before
        handler.close()


class QuietFileHandler(logging.FileHandler):
    """A log that cannot be written, on a disk that is full, says nothing of that: the run ends on it elsewhere."""

    def handleError(self, record: logging.LogRecord) -> None: ...


class TroubleHandler(logging.Handler):
    """Hands on what the supervision of stages and broker warns of, once for each change."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._last = ""
        self.addFilter(lambda record: record.name.startswith(SUPERVISION))

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text != self._last:
            self._last = text
            self._tell(text)


class DemoView:
    """The screen, then audit, report and the last line."""

    on_line = None

    def __init__(self, run: Run, console: Console) -> None:
        self._run = run
        self._console = console
        self._directory = run.directory
        self._ending: Ending = "interrupted"
        plan = Plan(
            run_name=run.run.name,
            num_steps=run.training.num_steps,
            stages=STAGES,
            log_dir=shown_path(run.directory / "logs"),
        )
        self._watch = Watch(plan, self._lags, lambda: memory_of(run))
        self._admin: Admin | None = None

    def tell(self, text: str) -> None:
        """Shows what went wrong: on the screen, and as a line on stderr."""
        self._watch.trouble = text
        with suppress(OSError):
            click.echo(text, err=True)

    async def follow(self, kafka: KafkaTable, supervisor: Supervisor, interrupted: asyncio.Event) -> None:
        """Draws the moment until the run has ended, is interrupted, or nothing moves any more."""
        deliveries = scan_of(self._run, kafka, follow=True)(topics_read(with_transcripts=True))
        with Admin(kafka) as self._admin, display_on(self._console) as display:
            self._ending = await self._watch.until_end(supervisor, deliveries, display, interrupted)

    def _lags(self) -> dict[str, int]:
        assert self._admin is not None
        name = self._run.run.name
        return {stage.name: sum(self._admin.lags(name, stage).values()) for stage in STAGES if stage.inputs}

    async def conclude(self, kafka: KafkaTable, states: Sequence[ProcessState]) -> int:
        """Audit, report, table, last line."""
        self._explain(states)
        history = await read_history(scan_of(self._run, kafka))
        audit = await run_audit(self._run, is_in_flight_allowed=self._ending != "planned")
        summary = summarize(history.snapshot, self._run.run.name, audit_text(audit.findings), seconds=self._watch.elapsed_s())
        summary = msgspec.structs.replace(summary, peak_memory_bytes=self._watch.peak_memory_bytes)
        try:
            page = await asyncio.to_thread(write_run_report, self._run, history, summary)
        except OSError as error:
            click.echo(f"error: report: expected to be written, got {error}", err=True)
        else:
            summary = msgspec.structs.replace(summary, report=str(page))
        self._print(summary, history)
        return exit_code(self._ending, self._watch.code, is_clean=audit.is_clean)

    def _explain(self, states: Sequence[ProcessState]) -> None:
        """Why there is no planned end, on stderr."""
        name, logs = self._run.run.name, self._directory / "logs"
        if self._ending == "failed":
            down = [state for state in states if state.pid is None and state.exit_code]
            names = ", ".join(f"{state.name} ({state.exit_code})" for state in down) or "a stage"
            click.echo(f"error: {name}: expected the planned end, got the end of {names}; see the logs in {logs}", err=True)
            for state in down:
                click.echo(f"{state.name}: {last_words(logs / f'{state.name}.log')}", err=True)
        elif self._ending == "stalled":
            restarts = ", ".join(f"{state.name} {state.restarts}" for state in states if state.restarts) or "none"
            what = f"no record on any topic for {self._watch.idle_s():.0f} s (restarts: {restarts})"
            click.echo(f"error: {name}: expected progress, got {what}; see the logs in {logs}", err=True)

    def _print(self, summary: Summary, history: History) -> None:
        rows = [*summary_rows(summary, history.snapshot.rounds), ("report", summary.report)]
        width = max(len(label) for label, _ in rows)
        for label, value in rows:
            self._console.print(f"{label:<{width}}  {value}", soft_wrap=True, markup=False)
        click.echo(msgspec.json.encode(summary).decode())


def exit_code(ending: Ending, stages_code: int, *, is_clean: bool) -> int:
    """0 only for the planned end of a run whose audit is clean."""
    codes: dict[Ending, int] = {"interrupted": EXIT_INTERRUPTED, "stalled": EXIT_STALLED, "failed": stages_code or 1}
    return codes.get(ending, 0 if is_clean else 1)


def shown_path(path: Path) -> str:
    """The path as short as it can be written."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
