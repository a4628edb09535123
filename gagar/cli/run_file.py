"""The run file at the command line: the options that choose it, and every check of it that needs no connection.

In: `--run` and `--set`. Out: a checked `Run`. All faults are ConfigErrors, told before anything starts.
"""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gagar.config import PACKAGED, Run, load_run, packaged
from gagar.errors import ConfigError
from gagar.policies.model_directory import check_directory
from topology.composition import check_tables
from topology.resources import Resources

T = TypeVar("T")

DEFAULT_RUN = f"{PACKAGED}nano/run.toml"


def run_option_pair(command: Callable[..., T]) -> Callable[..., T]:
    """Gives a click command `--run` and `--set` as `run_path` and `overrides`."""
    path = click.option("--run", "run_path", default=DEFAULT_RUN, show_default=True, metavar="PATH", help="The run file.")
    override = click.option(
        "--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a value; repeatable."
    )
    return path(override(command))


def run_options(command: Callable[..., T]) -> Callable[..., T]:
    """Gives a click command `--run` and `--set`; the command is called with the loaded `Run` as its keyword `run`."""

    @run_option_pair
    @functools.wraps(command)
    def wrapped(*args: Any, run_path: str, overrides: tuple[str, ...], **kwargs: Any) -> T:
        return command(*args, run=open_run(run_path, overrides), **kwargs)

    return wrapped


def run_arguments(context: click.Context) -> list[str]:
    """The options of `run_options` as they were given, for another process of the same run."""
    overrides: tuple[str, ...] = context.params["overrides"]
    arguments = ["--run", str(context.params["run_path"])]
    for override in overrides:
        arguments += ["--set", override]
    return arguments


def open_run(run_path: str, overrides: Sequence[str] = ()) -> Run:
    """The run file at a path, or a packaged one (`gagar:...`), whose relative paths start at the current directory."""
    if run_path.startswith(PACKAGED):
        return load_run(packaged(run_path), tuple(overrides), root=Path.cwd())
    return load_run(Path(run_path), tuple(overrides))


def check_run(run: Run) -> Resources:
    """The resources of a run whose tables are right and whose files are there; raises ConfigError."""
    resources = check_tables(run)
    check_directory(run.resolve(run.policy.path))
    _check_across_tables(run)
    return resources


def check_dir(run: Run) -> None:
    """Raises ConfigError unless `run.dir` can be made or written to; for commands that keep data there."""
    there = next(path for path in (run.dir, *run.dir.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        got = "no permission" if there.is_dir() else "a file"
        raise ConfigError(f"run.dir {run.dir}: expected a directory to write to, got {got} at {there}; name another one")


def _check_across_tables(run: Run) -> None:
    """The rules that hold between tables."""
    if not run.kafka.bootstrap_servers and run.kafka.replication_factor != 1:
        raise ConfigError(
            f"kafka.replication_factor: expected 1 with the local broker, got {run.kafka.replication_factor}; "
            "set kafka.bootstrap_servers, or leave it out"
        )
