"""The command `gagar`: a table of subcommands, each imported when it is called; the edge where errors become exit codes.

`--help` shows a line for each command without importing any.
"""

import importlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import click

from gagar.errors import EXIT_MACHINE, ConfigError, GagarError, MachineError
from gagar.processes.shutdown import EXIT_INTERRUPTED, lead_nowhere
from gagar.processes.storage import lack_of

COMMANDS: dict[str, tuple[str, str]] = {
    "audit": ("gagar.cli.audit:audit", "Prove from the topics that no group is lost or doubled and that every law holds."),
    "broker": ("gagar.cli.broker:broker", "Start, stop or look at the local Kafka broker."),
    "dead-letters": ("gagar.cli.history.dead_letters:dead_letters", "List, show and retry what stages have rejected."),
    "demo": ("gagar.cli.up.demo:demo", "Train the nano policy on this machine and watch it learn."),
    "health": ("gagar.cli.health:health", "Tell whether this machine's stages are alive, and what they wait for."),
    "replay": ("gagar.cli.replay:replay", "Run a stage again over records of the past, and compare."),
    "report": ("gagar.cli.report:report", "Write the report of a run from its topics."),
    "run": ("gagar.cli.run:run", "Run one process of one stage."),
    "sft": ("gagar.cli.sft:sft", "Make a first policy from demonstrations."),
    "show": ("gagar.cli.history.show:show", "Show the whole history of one thing: a group, a step, a task."),
    "topics": ("gagar.cli.topics.group:topics", "Plan, apply or check the topics; take parts of a run along; move a stage."),
    "up": ("gagar.cli.up.command:up", "Run the whole pipeline on this machine."),
}
"""Name -> (module:attribute, what it does)."""
OUR_PACKAGES = ("gagar", "topology", "producers", "consumers")


class OutputError(GagarError):
    """Nobody reads stdout any more."""

    exit_code = 1


class Output(io.TextIOWrapper):
    """Stdout whose errors are ours, so that they are told from those of other files; after one it leads nowhere."""

    def write(self, text: str) -> int:
        with self._told():
            return super().write(text)

    def flush(self) -> None:
        with self._told():
            super().flush()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            lead_nowhere(self.fileno())
            if lack := lack_of(error, Path("stdout")):
                raise MachineError(lack) from error
            raise OutputError(f"stdout: expected to take the output, got {str(error.strerror).lower()}") from error


class LazyGroup(click.Group):
    """A group that imports a subcommand's module when that is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def gagar() -> None:
    """Reinforcement learning for code agents over Apache Kafka."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs a command and exits: 0 done, 1 the command's own no, 2 wrong usage or configuration, else as the error says."""
    _set_streams()
    try:
        _check_directory()
        code = gagar.main(args=arguments, prog_name="gagar", standalone_mode=False)
        sys.stdout.flush()
    except GagarError as error:
        for line in str(error).splitlines():
            _tell(f"error: {line}")
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _tell("stopped")
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if not (lack := missing_package(error) or lack_of(error)):
            raise
        _tell(f"error: {lack}")
        sys.exit(EXIT_MACHINE)
    sys.exit(code if isinstance(code, int) else 0)


def missing_package(error: Exception) -> str:
    """What to say of a package that was not installed; empty for another error, and for a module of ours, which is a bug."""
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if name.partition(".")[0] in ("", *OUR_PACKAGES):
        return ""
    return f"{name}: expected the package, got none; run `pip install 'gagar-rl[all]'`, or the extra that brings it"


def _set_streams() -> None:
    """Streams that were closed lead nowhere; stdout tells its errors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process
    if type(sys.stdout) is io.TextIOWrapper:  # not in tests that catch it
        is_line_buffered, encoding, errors = sys.stdout.line_buffering, sys.stdout.encoding, sys.stdout.errors
        sys.stdout = Output(sys.stdout.detach(), encoding, errors, line_buffering=is_line_buffered)


def _check_directory() -> None:
    """Raises ConfigError without a working directory."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("working directory: expected one, got one that was deleted; change into another one") from None


def _tell(text: str) -> None:
    """On stderr, if anything reads that."""
    with suppress(OSError):
        click.echo(text, err=True)


if __name__ == "__main__":
    try:
        main()
    except SystemExit as end:
        # A stage is started like this. Its work is committed and closed: to take torch apart costs seconds on a busy machine.
        logging.shutdown()
        os._exit(end.code if isinstance(end.code, int) else 1)
