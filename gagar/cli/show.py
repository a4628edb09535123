"""`gagar show`: the whole history of one thing, with everything that it refers to.

In: the run, and the id of a group, an attempt, a task, a step, a policy version or a dead letter. Out: text, one JSON object,
or (of a group, an attempt) a directory of files. Nothing is written to the cluster.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console, RenderableType

from gagar.cli.ids import (
    LetterId,
    TrajectoryId,
    complete_groups,
    complete_letters,
    complete_runs,
    complete_steps,
    complete_tasks,
    complete_versions,
)
from gagar.cli.run_history import read_run, render_run, run_object
from gagar.cli.saved_run import name_another, reading_options
from gagar.config import Run
from gagar.errors import ConfigError
from gagar.history.following import follow_group, follow_versions, line_of
from gagar.history.group import AttemptHistory, GroupHistory, read_group
from gagar.history.group_view import as_object, attempt_object, render_attempt, render_group
from gagar.history.letters import find_letter
from gagar.history.letters_view import letter_object, render_letter
from gagar.history.steps import read_step, read_task, read_version
from gagar.history.steps_view import render_step, render_task, render_version, step_object, task_object, version_object
from gagar.history.workspace import check_directory, write_workspace
from gagar.records import LogRef, PolicyVersion, RolloutRequest, Trajectory
from gagar.stream.handlers import Delivery
from gagar.stream.readers.references import LogReferences
from gagar.stream.transport import Transport
from gagar.tasks.task import Task
from topology.resources import Resources
from topology.topics import TOPICS, TRAJECTORIES

T = TypeVar("T")

PIPE_COLUMNS = 200
"""Width of tables where stdout is no terminal."""


def new_directory(context: click.Context | None, option: click.Parameter | None, path: Path | None) -> Path | None:
    """A click callback: a directory that is new or empty. Raises ConfigError."""
    if path is not None:
        check_directory(path)
    return path


as_json = click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
to_files = click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    callback=new_directory,
    metavar="DIR",
    help="Leave task, base, tests, and each attempt's patch, transcript and verdict as files in a new directory.",
)
following = click.option("--follow", "is_followed", is_flag=True, help="Wait until it has ended; tell on stderr what comes.")


@click.group()
def show() -> None:
    """Show the whole history of one thing.

    The run is the one that started last, unless --run or --set run.name=NAME names another.
    """


@show.command()
@click.argument("run_name", metavar="[NAME]", required=False, shell_complete=complete_runs)
@reading_options
@as_json
@following
def run(run: Run, is_json: bool, is_followed: bool) -> None:
    """A run: its settings, groups, steps and evaluations. The newest, unless it is named."""
    resources = Resources(run)
    if is_followed:
        asyncio.run(_follow_versions(resources, None))
    history = asyncio.run(read_run(resources))
    tell(is_json, lambda: run_object(history), lambda: render_run(history))


@show.command()
@click.argument("group_id", shell_complete=complete_groups)
@reading_options
@as_json
@to_files
@following
def group(run: Run, group_id: str, is_json: bool, workspace: Path | None, is_followed: bool) -> None:
    """A group: requests, attempts, verdicts, ranking, advantages, outcome."""
    resources = Resources(run)
    history = asyncio.run(_group(resources, group_id, is_followed))
    if workspace is not None:
        write_workspace(workspace, history, _task(resources, history))
    tell(is_json, lambda: as_object(history), lambda: render_group(history))


@show.command()
@click.argument("trajectory", type=TrajectoryId(), metavar="GROUP/SAMPLE", shell_complete=complete_groups)
@reading_options
@as_json
@to_files
@following
def trajectory(
    run: Run, trajectory: "tuple[str, int] | LogRef", is_json: bool, workspace: Path | None, is_followed: bool
) -> None:
    """One attempt of a group, with its transcript and its patch: t-000012/3, or trajectories[1]@118."""
    resources = Resources(run)
    history, attempt = asyncio.run(_attempt(resources, trajectory, is_followed))
    if workspace is not None:
        write_workspace(workspace, history, _task(resources, history), only=attempt)
    tell(
        is_json,
        lambda: {"group_id": history.group_id, "state": history.reached, **attempt_object(attempt)},
        lambda: render_attempt(history, attempt),
    )


@show.command()
@click.argument("task_id", shell_complete=complete_tasks)
@reading_options
@as_json
def task(run: Run, task_id: str, is_json: bool) -> None:
    """A task, and every group that was asked to try it."""
    resources = Resources(run)
    known = _find_task(resources, task_id)
    history = asyncio.run(with_transport(resources, lambda transport: read_task(transport, TOPICS, task_id)))
    if known is None and not history.groups:
        raise ConfigError(f"task {task_id!r}: expected one of run {run.run.name}, got none; {name_another(run)}")
    tell(is_json, lambda: task_object(history, known), lambda: render_task(history, known))


@show.command()
@click.argument("step", type=click.IntRange(min=0), shell_complete=complete_steps)
@reading_options
@as_json
@following
def step(run: Run, step: int, is_json: bool, is_followed: bool) -> None:
    """An optimizer step: its groups, the version that it made, the evaluation of that."""
    resources = Resources(run)
    if is_followed:
        asyncio.run(_follow_versions(resources, step))
    history = asyncio.run(with_transport(resources, lambda transport: read_step(transport, TOPICS, step)))
    if not (history.versions or history.outcomes or history.evaluation):
        raise ConfigError(f"step {step}: expected one that run {run.run.name} has begun, got none; {name_another(run)}")
    tell(is_json, lambda: step_object(history), lambda: render_step(history))


@show.command()
@click.argument("version", metavar="[RUN_ID/]NUMBER", shell_complete=complete_versions)
@reading_options
@as_json
@following
def version(run: Run, version: str, is_json: bool, is_followed: bool) -> None:
    """A policy version: its step, its metrics, the groups that it was trained on."""
    resources = Resources(run)
    number = version.rpartition("/")[2]
    if not (number.isascii() and number.isdigit()):
        raise ConfigError(f"version {version!r}: expected a number, or a learner's run id and a number as a1b2/12, got another")
    if is_followed:
        asyncio.run(_follow_versions(resources, int(number)))
    history = asyncio.run(with_transport(resources, lambda transport: read_version(transport, TOPICS, version)))
    if history is None:
        raise ConfigError(f"version {version}: expected one of run {run.run.name}, got none; {name_another(run)}")
    tell(is_json, lambda: version_object(history), lambda: render_version(history))


@show.command("dead-letter")
@click.argument("letter", type=LetterId(), metavar="PARTITION@OFFSET", shell_complete=complete_letters)
@reading_options
@as_json
def dead_letter(run: Run, letter: LogRef, is_json: bool) -> None:
    """A record that a stage has rejected, and why: 1@17, as `gagar dead-letters list` names it."""
    show_letter(run, letter, is_json)


def show_letter(run: Run, letter: LogRef, is_json: bool) -> None:
    """Prints a dead letter."""
    found = asyncio.run(with_transport(Resources(run), lambda transport: find_letter(transport, TOPICS, letter)))
    tell(is_json, lambda: letter_object(found, TOPICS), lambda: render_letter(found, TOPICS))


def tell(is_json: bool, as_dict: Callable[[], Any], as_text: Callable[[], RenderableType]) -> None:
    """Prints a thing in the form that was asked for."""
    if is_json:
        click.echo(msgspec.json.encode(as_dict()).decode())
    else:
        console = Console(highlight=False)
        console = console if console.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)
        console.print(as_text())


async def with_transport(resources: Resources, read: Callable[[Transport], Coroutine[Any, Any, T]]) -> T:
    """What is read over a way into the log; a long read shows that it goes on."""
    with Console(stderr=True).status("reading the log"):
        async with resources.opened() as transport:
            return await read(transport)


async def _group(resources: Resources, group_id: str, is_followed: bool) -> GroupHistory:
    """Raises ConfigError if there is no such group."""

    async def read(transport: Transport) -> GroupHistory:
        if is_followed:
            return await follow_group(transport, TOPICS, group_id, _tell_line)
        return await read_group(transport, TOPICS, group_id)

    history = await with_transport(resources, read)
    if not history.num_records:
        run = resources.run
        raise ConfigError(
            f"group {group_id!r}: expected a group that run {run.run.name} has asked for, got none; "
            f"`gagar show task` and `gagar show step` name groups, or {name_another(run)}"
        )
    return history


async def _attempt(
    resources: Resources, wanted: tuple[str, int] | LogRef, is_followed: bool
) -> tuple[GroupHistory, AttemptHistory]:
    """Raises ConfigError if there is no such attempt."""
    if isinstance(wanted, LogRef):
        group_id, sample = await with_transport(resources, partial(_sample_at, wanted))
    else:
        group_id, sample = wanted
    history = await _group(resources, group_id, is_followed)
    for attempt in history.attempts:
        if attempt.sample_index == sample:
            return history, attempt
    samples = ", ".join(str(attempt.sample_index) for attempt in history.attempts)
    raise ConfigError(f"trajectory {group_id}/{sample}: expected a sample of the group, of {samples or 'none'}, got {sample}")


async def _sample_at(ref: LogRef, transport: Transport) -> tuple[str, int]:
    """Group and sample of a trajectory; raises BadRecordError if there is none."""
    references = LogReferences(transport, [TRAJECTORIES])
    try:
        [found] = await references.read([ref], Trajectory)
        return found.group_id, found.sample_index
    finally:
        await references.close()


async def _follow_versions(resources: Resources, step: int | None) -> None:
    """Until a step is made, or none: until the planned end of the run."""

    def is_awaited(version: PolicyVersion) -> bool:
        return step is not None and version.step >= step

    async with resources.opened() as transport:
        await follow_versions(transport, TOPICS, _tell_line, is_awaited)


def _tell_line(delivery: Delivery[Any]) -> None:
    click.echo(line_of(delivery), err=True)


def _task(resources: Resources, history: GroupHistory) -> Task | None:
    """The task of a group, if this machine has it; if not, that is told."""
    requests = history.of(RolloutRequest)
    task = _find_task(resources, requests[0].record.task_id) if requests else None
    if task is None:
        click.echo("the task is not among [tasks] of this run here: the workspace has no base and no tests", err=True)
    return task


def _find_task(resources: Resources, task_id: str) -> Task | None:
    """None too if this machine does not have the files of [tasks]."""
    try:
        return resources.tasks.find(task_id)
    except ConfigError as error:
        click.echo(f"tasks not read: {error}", err=True)
        return None
