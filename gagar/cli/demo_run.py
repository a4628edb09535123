"""What `gagar demo` does: broker, topics, stages, the watch, a clean stop, the audit, the report, the last line.

In: a run file and overrides. Out: an exit code; stdout ends with the summary as JSON. A broker that ran before goes on running.
"""

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from gagar.cli.report import History, read_history, scan_of, topics_read, write_run_report
from gagar.cli.run_file import DEFAULT_RUN, check_dir, check_run, open_run
from gagar.config import Run
from gagar.processes.shutdown import EXIT_INTERRUPTED, interruption
from gagar.report.summary import Summary, summarize, summary_rows
from gagar.report.watch import Ending, Plan, Watch, resident_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from gagar.processes.supervised import ProcessState
    from gagar.processes.supervisor import Supervisor
    from gagar.stream.kafka.admin import Admin

EXIT_STALLED = 1
LAST_BYTES = 4096
"""How much of a log's end is looked at."""


def run_demo(overrides: tuple[str, ...]) -> int:
    """The whole demo; raises GagarError if it cannot start."""
    from rich.console import Console

    from gagar.broker.local import cluster_of

    run = open_run(DEFAULT_RUN, overrides)
    check_run(run)
    check_dir(run)
    console = Console(highlight=False)
    with cluster_of(run) as servers:
        directory = run.directory
        directory.mkdir(parents=True, exist_ok=True)
        with logged_to(directory / "demo.log"):
            arguments = ("--run", DEFAULT_RUN, *(f"--set={override}" for override in overrides))
            return asyncio.run(Demo(run, servers, console, arguments).run_to_end())


def memory_of(run: Run) -> int:
    """Resident bytes of all processes of the run on this machine."""
    from gagar.broker.address import broker_dir, running_state

    state = None if run.kafka.bootstrap_servers else running_state(broker_dir(run))
    return resident_bytes(state.pid if state else None)


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """This process logs into a file meanwhile: a line on the screen would break the picture."""
    root = logging.getLogger()
    before = root.handlers[:]
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root.handlers[:] = [handler]
    try:
        yield
    finally:
        root.handlers[:] = before
        handler.close()


class Demo:
    """One demo, from topics to the last line."""

    def __init__(self, run: Run, servers: str, console: "Console", argv_tail: tuple[str, ...]) -> None:
        self._run = run
        self._servers = servers
        self._console = console
        self._argv_tail = argv_tail
        self._directory = run.directory

    async def run_to_end(self) -> int:
        """Starts, watches, stops, audits, reports; returns the exit code."""
        from gagar.broker.watch import cluster_watch
        from gagar.cli.stage_processes import stage_processes
        from gagar.cli.topics import apply_topology
        from gagar.processes.supervisor import Supervisor
        from gagar.stream.kafka.admin import Admin

        interrupted = interruption()
        await asyncio.to_thread(apply_topology, self._run)
        specs = stage_processes(self._argv_tail, {}, self._run.kafka.num_partitions)
        supervisor = Supervisor(specs, self._directory, cluster_watch(self._run))
        with Admin(self._servers) as admin:
            watch = self._watch(admin)
            try:
                await supervisor.start()
                ending = await self._follow(watch, supervisor, interrupted)
                states = supervisor.states()
            finally:
                self._console.print("stopping the stages ...", style="dim")
                await supervisor.stop()
        self._explain(ending, states, watch)
        return await self._conclude(ending, watch)

    def _watch(self, admin: "Admin") -> Watch:
        from topology.stages import STAGES

        def lags() -> dict[str, int]:
            return {stage.name: sum(admin.lags(self._run.run.name, stage).values()) for stage in STAGES if stage.inputs}

        plan = Plan(
            run_name=self._run.run.name,
            num_steps=self._run.training.num_steps,
            stages=STAGES,
            log_dir=shown_path(self._directory / "logs"),
        )
        return Watch(plan, lags, lambda: memory_of(self._run))

    async def _follow(self, watch: Watch, supervisor: "Supervisor", interrupted: asyncio.Event) -> Ending:
        from gagar.report.display import display_on

        deliveries = scan_of(self._run, self._servers, follow=True)(topics_read(with_transcripts=True))
        with display_on(self._console) as display:
            return await watch.until_end(supervisor, deliveries, display, interrupted)

    def _explain(self, ending: Ending, states: "Sequence[ProcessState]", watch: Watch) -> None:
        """Why there is no planned end, on stderr."""
        name, logs = self._run.run.name, self._directory / "logs"
        if ending == "failed":
            down = [state for state in states if state.pid is None and state.exit_code]
            names = ", ".join(f"{state.name} ({state.exit_code})" for state in down) or "a stage"
            click.echo(f"error: {name}: expected the planned end, got the end of {names}; see the logs in {logs}", err=True)
            for state in down:
                click.echo(f"{state.name}: {last_words(logs / f'{state.name}.log')}", err=True)
        elif ending == "stalled":
            restarts = ", ".join(f"{state.name} {state.restarts}" for state in states if state.restarts) or "none"
            what = f"no record on any topic for {watch.idle_s():.0f} s (restarts: {restarts})"
            click.echo(f"error: {name}: expected progress, got {what}; see the logs in {logs}", err=True)

    async def _conclude(self, ending: Ending, watch: Watch) -> int:
        """Audit, report, table, last line."""
        from gagar.cli.audit import run_audit
        from gagar.cli.report import audit_text

        history = await read_history(scan_of(self._run, self._servers))
        report = await run_audit(self._run, is_in_flight_allowed=ending != "planned")
        summary = summarize(
            history.snapshot,
            self._run.run.name,
            audit_text(report.findings),
            seconds=watch.elapsed_s(),
        )
        summary = msgspec.structs.replace(summary, peak_memory_bytes=watch.peak_memory_bytes)
        page = await asyncio.to_thread(write_run_report, self._run, history, summary)
        summary = msgspec.structs.replace(summary, report=str(page))
        self._print(summary, history)
        return exit_code(ending, watch.code, is_clean=report.is_clean)

    def _print(self, summary: Summary, history: History) -> None:
        rows = [*summary_rows(summary, history.snapshot.rounds), ("report", summary.report)]
        width = max(len(label) for label, _ in rows)
        for label, value in rows:
            self._console.print(f"{label:<{width}}  {value}", soft_wrap=True, markup=False)
        print_last_line(summary)


def exit_code(ending: Ending, stages_code: int, *, is_clean: bool) -> int:
    """0 only for the planned end of a run whose audit is clean."""
    codes: dict[Ending, int] = {"interrupted": EXIT_INTERRUPTED, "stalled": EXIT_STALLED, "failed": stages_code or 1}
    return codes.get(ending, 0 if is_clean else 1)


def last_words(log_file: Path) -> str:
    """The last line of a log that says something; bounded."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, log_file.stat().st_size - LAST_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError as error:
        return f"no log: {error.strerror}"
    return next((line for line in reversed(lines) if line.strip()), "nothing logged")


def shown_path(path: Path) -> str:
    """The path as short as it can be written."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def print_last_line(summary: Summary) -> None:
    """The summary as one JSON object, nothing after it."""
    sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    sys.stdout.flush()
