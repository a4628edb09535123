"""The settings of a run, saved in its directory when it starts: reports and audits of it go by them.

In: a `Run` that starts, or what the command line says of one that is read. Out: `<run.directory>/run.toml`, a run file with
what the run file and `--set` gave and with the place where relative paths start; every difference to what a reader is given.
Nothing of the environment is saved, so no address or secret that came from there.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import tomlkit
from click.core import ParameterSource
from msgspec.structs import asdict, replace

from gagar.broker.address import broker_dir
from gagar.cli.run_file import open_run, run_option_pair
from gagar.config import Run, load_run
from gagar.errors import ConfigError
from topology.composition import check_table_names
from topology.settings import differences, is_of_access, settings_of

T = TypeVar("T")

FILE = "run.toml"
MAX_NAMES = 8
"""Runs that a message names."""


def reading_options(command: Callable[..., T]) -> Callable[..., T]:
    """Gives a click command that reads a run `--run` and `--set`; without a name among them it is the newest run of the
    directory. The command is called with the run as it was started, and its cluster is there meanwhile. An argument `run_name`
    of the command names the run too."""

    @run_option_pair
    @functools.wraps(command)
    def wrapped(*args: Any, run_path: str, overrides: tuple[str, ...], **kwargs: Any) -> T:
        is_file_given = is_run_file_given(click.get_current_context())
        if name := kwargs.pop("run_name", None):
            overrides = (*overrides, f"run.name={name}")
        run = run_to_read(run_path, overrides, is_file_given=is_file_given)
        with cluster_to_read(run):
            return command(*args, run=run, **kwargs)

    return wrapped


def is_run_file_given(context: click.Context) -> bool:
    """Whether a command line names a run file, in place of the packaged one."""
    return context.get_parameter_source("run_path") is not ParameterSource.DEFAULT


def on_stderr(text: str) -> None:
    """For people."""
    click.echo(text, err=True)


def run_to_read(
    run_path: str, overrides: Sequence[str], *, is_file_given: bool, tell: Callable[[str], None] = on_stderr
) -> Run:
    """The run as it was started last, or as it is given if nothing is saved of it; tells which one it is and how it differs
    from what is given. Raises ConfigError."""
    given, saved = _given_and_saved(run_path, overrides, is_file_given, tell)
    if saved is None:
        return given
    for line in differences(settings_of(saved), settings_of(given)):
        tell(f"run {saved.run.name}: {line}; it is read as it was")
    return saved


def run_to_replay(run_path: str, overrides: Sequence[str], *, is_file_given: bool) -> Run:
    """The same run as it was started last, but for the overrides; tells on stderr how a run file that is given differs. Raises
    ConfigError."""
    given, saved = _given_and_saved(run_path, overrides, is_file_given, on_stderr)
    if saved is None:
        return given
    replayed = load_run(saved.directory / FILE, (*overrides, f"run.dir={given.dir}"))
    for line in differences(settings_of(replayed), settings_of(given)):
        on_stderr(f"run {saved.run.name}: {line} in the run file; it is replayed as it was started, but for --set")
    return replace(replayed, kafka=saved.kafka)


def _given_and_saved(
    run_path: str, overrides: Sequence[str], is_file_given: bool, tell: Callable[[str], None]
) -> tuple[Run, Run | None]:
    """A run as it is given, over what is saved of it unless a run file is given; and as it was started last, if it was."""
    given = open_run(run_path, overrides)
    is_named = is_file_given or any(override.partition("=")[0].strip() == "run.name" for override in overrides)
    if not is_named and (names := run_names(given.dir)):
        overrides = (*overrides, f"run.name={names[-1]}")
        given = open_run(run_path, overrides)
        tell(f"run {names[-1]}: the newest in {given.directory.parent}; name another one with --set run.name=NAME")
    saved = saved_run(given)
    if saved is None:
        check_table_names(given)
    elif not is_file_given:
        given = load_run(saved.directory / FILE, (*overrides, f"run.dir={given.dir}"))
    return given, saved


@contextmanager
def cluster_to_read(run: Run) -> Iterator[None]:
    """The cluster of a run: a local broker that is not running is started, and stopped again. Raises UnavailableError, or
    ConfigError if no local broker ever ran there."""
    from gagar.broker.local import cluster_of

    if not run.kafka.bootstrap_servers and not (broker_dir(run) / "data").is_dir():
        raise ConfigError(f"run.dir: expected a directory with runs, got none in {run.dir}; name one with --set run.dir=PATH")
    with cluster_of(run):
        yield


def save_run(run: Run) -> str:
    """Saves the settings of a run that starts, over those of an earlier start; the fault that left them unsaved, or nothing."""
    try:
        _write(run)
    except OSError as error:
        return f"settings not saved: {error}"
    return ""


def save_unless_saved(run: Run) -> str:
    """The same for a process that joins a run: what its directory holds already stays."""
    return "" if (run.directory / FILE).is_file() else save_run(run)


def _write(run: Run) -> None:
    path = run.directory / FILE
    part = path.with_name(f"{FILE}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = run.given | {"run": {**run.given["run"], "root": run.root}}
    part.write_text(tomlkit.dumps(tables), encoding="utf-8")
    part.replace(path)


def saved_run(run: Run) -> Run | None:
    """The run as it was started last in the same directory; none if it was not. Raises ConfigError if its file is broken.

    Where the cluster is now and how it is met are no settings of the run: an address or a protocol that `run` has is kept.
    """
    path = run.directory / FILE
    if not path.is_file():
        return None
    try:
        saved = load_run(path)
        settings_of(saved)
    except ConfigError as error:
        raise ConfigError(f"settings of run {run.run.name} in {path}: {error}") from error
    met = run.kafka if run.kafka.security_protocol != "PLAINTEXT" else saved.kafka
    servers = run.kafka.bootstrap_servers or saved.kafka.bootstrap_servers
    own = {key: value for key, value in asdict(saved.kafka).items() if not is_of_access(f"kafka.{key}")}
    kafka = replace(met, **own | {"bootstrap_servers": servers})
    return replace(saved, run=replace(saved.run, dir=str(run.dir)), kafka=kafka)


def run_names(directory: Path) -> list[str]:
    """The names of the runs that were started in a `run.dir`, the one that started last at the end."""
    files = sorted(directory.glob(f"runs/*/{FILE}"), key=lambda path: path.stat().st_mtime_ns)
    return [path.parent.name for path in files]


def name_another(run: Run) -> str:
    """The end of a message about a run that is not there. Example: `name one with --set run.name=NAME, of nano-1, nano-2`."""
    names = ", ".join(run_names(run.dir)[-MAX_NAMES:])
    return f"name one with --set run.name=NAME{f', of {names}' if names else ''}"
