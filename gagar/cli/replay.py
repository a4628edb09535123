"""`gagar replay STAGE`: a stage again, over records of the past, and what it answers now beside what was recorded.

In: a run that was started, with any `--set`; which records. Out: answers in a directory, or on shadow topics as well; with
`--diff` what has changed, as tables or JSON. No live topic is written, and no consumer group is touched.
"""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from gagar.broker.address import cluster_now
from gagar.cli.audit import since_time
from gagar.cli.run_file import run_option_pair
from gagar.cli.saved_run import cluster_to_read, is_run_file_given, run_to_replay
from gagar.config import Run
from gagar.replay.judging import ReplayResult
from gagar.replay.selection import OffsetRange, Selection
from gagar.stream.spec import Stage, Topic
from topology.composition import check_tables
from topology.replay import ReplayChoice, ReplayView, StageReplay, find_replayed

LINE_S = 5.0
"""Between two lines of progress where stderr is no terminal."""
WIDTH = 128
"""Of tables there."""


def steps_of(context: click.Context, option: click.Parameter, texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """A click callback: `7` or `7-9`. Raises click.BadParameter."""
    steps = []
    for text in texts:
        match = re.fullmatch(r"([0-9]{1,12})(?:-([0-9]{1,12}))?", text)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise click.BadParameter(f"expected a step as 7, or steps as 7-9, got {text!r}")
        steps.append((int(match[1]), int(match[2] or match[1])))
    return tuple(steps)


def offsets_of(stage: Stage, texts: Sequence[str]) -> tuple[OffsetRange, ...]:
    """Ranges as `groups[2]@118` or `groups[2]@118-140`, of the stage's first input. Raises click.BadParameter."""
    name = stage.inputs[0].name
    expected = f"expected offsets of {name} as {name}[2]@118 or {name}[2]@118-140"
    ranges = []
    for text in texts:
        match = re.fullmatch(rf"{name}\[([0-9]{{1,6}})\]@([0-9]{{1,18}})(?:-([0-9]{{1,18}}))?", text)
        if not match or int(match[3] or match[2]) < int(match[2]):
            raise click.BadParameter(f"{expected}, got {text!r}", param_hint="--offsets")
        ranges.append(OffsetRange(partition=int(match[1]), first=int(match[2]), last=int(match[3] or match[2])))
    return tuple(ranges)


def shadow_id(context: click.Context, option: click.Parameter, text: str) -> str:
    """A click callback: part of a topic's name."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,60}", text):
        raise click.BadParameter(f"expected at most 60 ASCII letters, digits, - and _, got {text!r}")
    return text


@click.command()
@click.argument("stage_name", metavar="STAGE")
@run_option_pair
@click.option("--group", multiple=True, metavar="ID", help="Only this group; repeatable.")
@click.option("--task", multiple=True, metavar="ID", help="Only this task; repeatable.")
@click.option("--step", multiple=True, callback=steps_of, metavar="K[-L]", help="Only groups trained or evaluated then.")
@click.option("--since", callback=since_time, metavar="WHEN", help="Only inputs since then: 30m, 2h, 1d, or an ISO time (UTC).")
@click.option("--until", callback=since_time, metavar="WHEN", help="Only inputs before then.")
@click.option("--offsets", multiple=True, metavar="TOPIC[P]@A[-B]", help="Only these offsets of the first input; repeatable.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), metavar="PATH", help="Where to, or which to go on with.")
@click.option("--shadow", callback=shadow_id, default="", metavar="ID", help="Write topics <run>.replay.ID.* as well.")
@click.option("--diff", "is_diff", is_flag=True, help="Compare with what was recorded.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def replay(
    context: click.Context,
    /,
    stage_name: str,
    run_path: str,
    overrides: tuple[str, ...],
    directory: Path | None,
    is_diff: bool,
    is_json: bool,
    **options: Any,
) -> None:
    """Run STAGE again over records of the past: verifier, gatherer, grader or advantage-publisher.

    The run is the one that started last, with its own settings but for what --set gives: other weights, another grader, another
    time-out. Records must fit all options that choose. Answers go to a directory (records.jsonl; --dir, or a new one below the
    run's); a replay that was interrupted goes on with the same command and its --dir. Nothing is written to the run's topics.
    """
    stage = find_replayed(stage_name)
    chosen = chosen_of(stage, options, is_diff=is_diff)
    is_file_given = is_run_file_given(context)
    run = run_to_replay(run_path, overrides, is_file_given=is_file_given)
    name = chosen.shadow or time.strftime(f"{stage.name}-%Y%m%d-%H%M%S", time.gmtime())
    show(run_replay(run, stage, directory or run.directory / "replays" / name, chosen), is_json)


def chosen_of(stage: Stage, options: Mapping[str, Any], *, is_diff: bool) -> ReplayChoice:
    """The options as one value. A time may count from now, so a replay that goes on keeps the one that it began with."""
    typed = [(name, value) for name, value in options.items() if value]
    selection = Selection(
        groups=frozenset(options["group"]) or None,
        tasks=frozenset(options["task"]),
        since=options["since"],
        until=options["until"],
        offsets=offsets_of(stage, options["offsets"]),
    )
    return ReplayChoice(
        asked=tuple(f"--{name}" if name in ("since", "until") else f"--{name} {value}" for name, value in typed),
        selection=selection,
        steps=options["step"],
        shadow=options["shadow"],
        is_diff=is_diff,
    )


def run_replay(run: Run, stage: Stage, directory: Path, chosen: ReplayChoice) -> ReplayResult:
    """Replays on the run's cluster; a local broker that is not running is started meanwhile. Raises ConfigError,
    UnavailableError."""
    resources = check_tables(run)
    with shown_progress() as view:
        replaying = StageReplay(resources, stage, directory, chosen, view)
        with cluster_to_read(run):
            click.echo(f"replay into {directory}; after an interruption the same command with --dir there goes on", err=True)
            return asyncio.run(replaying.run(lambda shadows: create_topics(run, shadows)))


def create_topics(run: Run, shadows: Sequence[Topic]) -> None:
    """Those of a replay that are not there yet. Raises ConfigError."""
    from gagar.stream.kafka.admin import Admin

    with Admin(cluster_now(run)) as admin:
        admin.apply(run, shadows)


@contextmanager
def shown_progress() -> Iterator[ReplayView]:
    """A bar on a terminal, else a line now and then; both on stderr."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield LineView()
        return
    with Progress(console=console, transient=True) as bar:
        tasks = {}

        def view(what: str, done: int, total: int | None, /) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield view


class LineView:
    """A line of progress every few seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, what: str, done: int, total: int | None, /) -> None:
        if time.monotonic() - self._last >= LINE_S:
            self._last = time.monotonic()
            click.echo(f"{what} {done}{f' of {total} offsets' if total is not None else ''}", err=True)


def show(result: ReplayResult, is_json: bool) -> None:
    """On stdout."""
    from rich.console import Console

    from gagar.replay.view import as_object, as_tables

    if is_json:
        click.echo(msgspec.json.encode(as_object(result)).decode())
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    for table in as_tables(result):
        console.print(table, soft_wrap=False)
