"""The command `gagar`: a table of subcommands, each imported when it is called; the edge where our errors become exit code 2.

`--help` shows a line for each command without importing any.
"""

import importlib
import sys
from typing import NoReturn

import click

from gagar.errors import GagarError

COMMANDS: dict[str, tuple[str, str]] = {
    "audit": ("gagar.cli.audit:audit", "Prove from the topics that no group is lost or doubled and that every law holds."),
    "broker": ("gagar.cli.broker:broker", "Start, stop or look at the local Kafka broker."),
    "demo": ("gagar.cli.demo:demo", "Train the nano policy on this machine and watch it learn."),
    "report": ("gagar.cli.report:report", "Write the report of a run from its topics."),
    "run": ("gagar.cli.run:run", "Run one process of one stage."),
    "sft": ("gagar.cli.sft:sft", "Make a first policy from demonstrations."),
    "topics": ("gagar.cli.topics:topics", "Plan, apply or check the topics; draw the pipeline."),
    "up": ("gagar.cli.up:up", "Run the whole pipeline on this machine."),
}
"""Name -> (module:attribute, what it does)."""


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
    """Runs a command and exits: 0 done, 1 the command's own no, 2 wrong usage or configuration, or as the error says."""
    try:
        code = gagar.main(args=arguments, prog_name="gagar", standalone_mode=False)
    except GagarError as error:
        for line in str(error).splitlines():
            click.echo(f"error: {line}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
