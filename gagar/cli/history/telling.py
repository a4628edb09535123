"""Reads one thing from the log and prints it, as text or as one JSON object.

In: the resources of a run, an id. Out: stdout; what comes meanwhile on stderr, if it is followed. A thing that is not there
is a ConfigError.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console, RenderableType

from gagar.cli.history.run_history import read_run, render_run, run_object
from gagar.cli.saved_run import name_another
from gagar.errors import ConfigError
from gagar.history.following import follow_group, follow_versions, line_of
from gagar.history.group import AttemptHistory, GroupHistory, read_group
from gagar.history.group_view import as_object, attempt_object, render_attempt, render_group
from gagar.history.letters import Retried, find_letter, list_letters, retry_letters
from gagar.history.letters_view import (
    letter_object,
    line_object,
    render_letter,
    render_lines,
    render_retries,
    retried_object,
)
from gagar.history.steps import read_step, read_task, read_version
from gagar.history.steps_view import render_step, render_task, render_version, step_object, task_object, version_object
from gagar.history.workspace import write_workspace
from gagar.records import LogRef, RolloutRequest, Trajectory
from gagar.stream.handlers import Delivery
from gagar.stream.readers.references import LogReferences
from gagar.stream.transport import Transport
from gagar.tasks.task import Task
from topology.resources import Resources
from topology.stages import STAGES
from topology.topics import TOPICS, TRAJECTORIES

T = TypeVar("T")

PIPE_COLUMNS = 200
"""Width of tables where stdout is no terminal."""


def tell_run(resources: Resources, *, is_json: bool, is_followed: bool) -> None:
    """A run; followed, it has come to its planned end."""
    if is_followed:
        asyncio.run(_follow_versions(resources, None))
    history = asyncio.run(read_run(resources))
    _tell(is_json, partial(run_object, history), partial(render_run, history))


def tell_group(resources: Resources, group_id: str, *, is_json: bool, workspace: Path | None, is_followed: bool) -> None:
    """A group."""
    history = asyncio.run(_group(resources, group_id, is_followed))
    if workspace is not None:
        write_workspace(workspace, history, _task_of(resources, history))
    _tell(is_json, partial(as_object, history), partial(render_group, history))


def tell_trajectory(
    resources: Resources, wanted: tuple[str, int] | LogRef, *, is_json: bool, workspace: Path | None, is_followed: bool
) -> None:
    """An attempt, by group and sample or by the place of its trajectory."""
    history, attempt = asyncio.run(_attempt(resources, wanted, is_followed))
    if workspace is not None:
        write_workspace(workspace, history, _task_of(resources, history), only=attempt)
    of_group = {"group_id": history.group_id, "state": history.reached}
    _tell(is_json, lambda: {**of_group, **attempt_object(attempt)}, partial(render_attempt, history, attempt))


def tell_task(resources: Resources, task_id: str, *, is_json: bool) -> None:
    """A task."""
    task, run = _find_task(resources, task_id), resources.run
    history = asyncio.run(_with_transport(resources, lambda transport: read_task(transport, TOPICS, task_id)))
    if task is None and not history.groups:
        raise ConfigError(f"task {task_id!r}: expected one of run {run.run.name}, got none; {name_another(run)}")
    _tell(is_json, partial(task_object, history, task), partial(render_task, history, task))


def tell_step(resources: Resources, step: int, *, is_json: bool, is_followed: bool) -> None:
    """A step; followed, it has been made."""
    if is_followed:
        asyncio.run(_follow_versions(resources, step))
    history, run = asyncio.run(_with_transport(resources, lambda transport: read_step(transport, TOPICS, step))), resources.run
    if not (history.versions or history.outcomes or history.evaluation):
        raise ConfigError(f"step {step}: expected one that run {run.run.name} has begun, got none; {name_another(run)}")
    _tell(is_json, partial(step_object, history), partial(render_step, history))


def tell_version(resources: Resources, name: str, *, is_json: bool, is_followed: bool) -> None:
    """A policy version; followed, it has been published. A version has the number of its step."""
    if is_followed:
        asyncio.run(_follow_versions(resources, int(name.rpartition("/")[2])))
    history = asyncio.run(_with_transport(resources, lambda transport: read_version(transport, TOPICS, name)))
    if history is None:
        run = resources.run
        raise ConfigError(f"version {name}: expected one of run {run.run.name}, got none; {name_another(run)}")
    _tell(is_json, partial(version_object, history), partial(render_version, history))


def tell_letter(resources: Resources, ref: LogRef, *, is_json: bool) -> None:
    """A dead letter."""
    letter = asyncio.run(_with_transport(resources, lambda transport: find_letter(transport, TOPICS, ref)))
    _tell(is_json, partial(letter_object, letter, TOPICS), partial(render_letter, letter, TOPICS))


def tell_letters(resources: Resources, stage: str, *, is_json: bool) -> None:
    """The list of dead letters."""
    lines = asyncio.run(_with_transport(resources, lambda transport: list_letters(transport, TOPICS, stage)))
    _tell(is_json, lambda: {"dead_letters": [line_object(line) for line in lines]}, partial(render_lines, lines))


def retry_and_tell(resources: Resources, refs: tuple[LogRef, ...], *, is_json: bool) -> bool:
    """Retries dead letters; whether all were."""

    async def retry(transport: Transport) -> list[Retried]:
        async with aclosing(retry_letters(transport, TOPICS, STAGES, refs)) as found:
            return [retried async for retried in found]

    found = asyncio.run(_with_transport(resources, retry))
    _tell(is_json, lambda: {"letters": [retried_object(retried) for retried in found]}, partial(render_retries, found))
    return not any(retried.refusal for retried in found)


def _tell(is_json: bool, as_dict: Callable[[], Any], as_text: Callable[[], RenderableType]) -> None:
    """Prints a thing in the form that was asked for."""
    if is_json:
        click.echo(msgspec.json.encode(as_dict()).decode())
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_COLUMNS)
    console.print(as_text())


async def _with_transport(resources: Resources, read: Callable[[Transport], Coroutine[Any, Any, T]]) -> T:
    """What is read over a way into the log; a long read shows that it goes on."""
    with Console(stderr=True).status("reading the log"):
        async with resources.opened() as transport:
            return await read(transport)


async def _group(resources: Resources, group_id: str, is_followed: bool, sample: int | None = None) -> GroupHistory:
    """A group; followed, it or a sample of it has ended. Raises ConfigError if there is no such group."""

    async def read(transport: Transport) -> GroupHistory:
        if is_followed:
            return await follow_group(transport, TOPICS, group_id, _tell_line, sample)
        return await read_group(transport, TOPICS, group_id)

    history = await _with_transport(resources, read)
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
        group_id, sample = await _with_transport(resources, partial(_sample_at, wanted))
    else:
        group_id, sample = wanted
    history = await _group(resources, group_id, is_followed, sample)
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
    async with resources.opened() as transport:
        await follow_versions(transport, TOPICS, _tell_line, step)


def _tell_line(delivery: Delivery[Any]) -> None:
    click.echo(line_of(delivery), err=True)


def _task_of(resources: Resources, history: GroupHistory) -> Task | None:
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
