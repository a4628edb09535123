"""`gagar show`: the whole history of one thing, with everything that it refers to.

In: the run, and the id of a group, an attempt, a task, a step, a policy version or a dead letter. Out: text, one JSON object,
or (of a group, an attempt) a directory of files. Nothing is written to the cluster.
"""

from pathlib import Path

import click

from gagar.cli.history.ids import (
    LetterId,
    TrajectoryId,
    complete_groups,
    complete_letters,
    complete_runs,
    complete_steps,
    complete_tasks,
    complete_versions,
)
from gagar.cli.saved_run import reading_options
from gagar.config import Run
from gagar.errors import ConfigError
from gagar.records import LogRef
from topology.resources import Resources


def new_directory(context: click.Context | None, option: click.Parameter | None, path: Path | None) -> Path | None:
    """A click callback: a directory that is new or empty. Raises ConfigError."""
    if path is not None:
        from gagar.history.workspace import check_directory

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
    from gagar.cli.history import telling

    telling.tell_run(Resources(run), is_json=is_json, is_followed=is_followed)


@show.command()
@click.argument("group_id", shell_complete=complete_groups)
@reading_options
@as_json
@to_files
@following
def group(run: Run, group_id: str, is_json: bool, workspace: Path | None, is_followed: bool) -> None:
    """A group: requests, attempts, verdicts, ranking, advantages, outcome."""
    from gagar.cli.history import telling

    telling.tell_group(Resources(run), group_id, is_json=is_json, workspace=workspace, is_followed=is_followed)


@show.command()
@click.argument("trajectory", type=TrajectoryId(), metavar="GROUP/SAMPLE", shell_complete=complete_groups)
@reading_options
@as_json
@to_files
@following
def trajectory(
    run: Run, trajectory: tuple[str, int] | LogRef, is_json: bool, workspace: Path | None, is_followed: bool
) -> None:
    """One attempt of a group, with its transcript and its patch: t-000012/3, or trajectories[1]@118."""
    from gagar.cli.history import telling

    telling.tell_trajectory(Resources(run), trajectory, is_json=is_json, workspace=workspace, is_followed=is_followed)


@show.command()
@click.argument("task_id", shell_complete=complete_tasks)
@reading_options
@as_json
def task(run: Run, task_id: str, is_json: bool) -> None:
    """A task, and every group that was asked to try it."""
    from gagar.cli.history import telling

    telling.tell_task(Resources(run), task_id, is_json=is_json)


@show.command()
@click.argument("step", type=click.IntRange(min=0), shell_complete=complete_steps)
@reading_options
@as_json
@following
def step(run: Run, step: int, is_json: bool, is_followed: bool) -> None:
    """An optimizer step: its groups, the version that it made, the evaluation of that."""
    from gagar.cli.history import telling

    telling.tell_step(Resources(run), step, is_json=is_json, is_followed=is_followed)


def version_name(context: click.Context | None, option: click.Parameter | None, text: str) -> str:
    """A click callback: the name of a policy version. Raises ConfigError."""
    number = text.rpartition("/")[2]
    if not (number.isascii() and number.isdigit()):
        raise ConfigError(f"version {text!r}: expected a number, or a learner's run id and a number as a1b2/12, got another")
    return text


@show.command()
@click.argument("version", callback=version_name, metavar="[RUN_ID/]NUMBER", shell_complete=complete_versions)
@reading_options
@as_json
@following
def version(run: Run, version: str, is_json: bool, is_followed: bool) -> None:
    """A policy version: its step, its metrics, the groups that it was trained on."""
    from gagar.cli.history import telling

    telling.tell_version(Resources(run), version, is_json=is_json, is_followed=is_followed)


@show.command("dead-letter")
@click.argument("letter", type=LetterId(), metavar="PARTITION@OFFSET", shell_complete=complete_letters)
@reading_options
@as_json
def dead_letter(run: Run, letter: LogRef, is_json: bool) -> None:
    """A record that a stage has rejected, and why: 1@17, as `gagar dead-letters list` names it."""
    from gagar.cli.history import telling

    telling.tell_letter(Resources(run), letter, is_json=is_json)
