"""`gagar up`: the whole pipeline on this machine, from one run file, until its planned end or Ctrl-C."""

import asyncio
import logging
import shlex
import sys
from collections import Counter
from collections.abc import Sequence

import click

from gagar.cli.run_file import check_dir, check_run, run_arguments, run_options
from gagar.cli.up.pipeline import run_pipeline
from gagar.cli.up.stage_processes import stage_processes
from gagar.config import KafkaTable, Run
from gagar.errors import ConfigError
from gagar.processes.shutdown import EXIT_INTERRUPTED
from gagar.processes.supervised import ProcessState
from gagar.processes.supervisor import Supervisor
from gagar.stream.together import until

COLOURS = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_yellow")


@click.command()
@click.option("--scale", "scales", multiple=True, metavar="STAGE=N", help="Processes of a stage, 1 if not given; repeatable.")
@run_options
@click.pass_context
def up(context: click.Context, run: Run, scales: tuple[str, ...]) -> int:
    """Run the whole pipeline on this machine: broker, topics and every stage, restarted when they die.

    A stage with --scale STAGE=0 is left to others: to `gagar run STAGE`, here or on another machine. Without it no run ends.
    """
    check_run(run)
    check_dir(run)
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    logging.getLogger("kafka").setLevel(logging.ERROR)
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    arguments, scale = run_arguments(context), parse_scales(scales)
    specs = stage_processes(arguments, scale, run)
    elsewhere = [shlex.join(["gagar", "run", stage, *arguments]) for stage, num in scale.items() if num == 0]
    return run_pipeline(run, specs, LogView(run, elsewhere))


class LogView:
    """The logs of all stages, line by line."""

    def __init__(self, run: Run, elsewhere: Sequence[str]) -> None:
        """`elsewhere`: commands that somebody else has to run."""
        self._run = run
        self._elsewhere = elsewhere
        self._code = EXIT_INTERRUPTED
        self.on_line = Printer().line

    async def follow(self, kafka: KafkaTable, supervisor: Supervisor, interrupted: asyncio.Event) -> None:
        """Until the run has ended or is interrupted."""
        click.echo(f"run {self._run.run.name}: logs in {self._run.directory / 'logs'}; end it with Ctrl-C", err=True)
        for command in self._elsewhere:
            click.echo(f"this run ends only if somebody else runs `{command}`", err=True)

        async def end() -> None:
            code = await supervisor.wait()
            self._code = EXIT_INTERRUPTED if interrupted.is_set() else code

        await until(interrupted, end())

    async def conclude(self, kafka: KafkaTable, states: Sequence[ProcessState]) -> int:
        """The stages' word."""
        return self._code


def parse_scales(scales: Sequence[str]) -> dict[str, int]:
    """`stage=n` as numbers; raises ConfigError on another form."""
    parsed = {}
    for scale in scales:
        stage, _, number = scale.partition("=")
        if not number.isascii() or not number.isdigit() or not 0 <= int(number) <= 1024:
            raise ConfigError(f"--scale {scale}: expected stage=n with n from 0 to 1024, e.g. verifier=4, got {scale!r}")
        parsed[stage] = int(number)
    return parsed


class Printer:
    """Prints lines with the name of their process in front, a colour for each; a line that repeats itself is counted."""

    def __init__(self) -> None:
        self._colours: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._repeats: Counter[str] = Counter()

    def line(self, name: str, text: str) -> None:
        """Prints a line, or counts it if the process's last one was the same."""
        if self._last.get(name) == text:
            self._repeats[name] += 1
            return
        if repeats := self._repeats.pop(name, 0):
            self._print(name, f"(the same {repeats} more times)")
        self._last[name] = text
        self._print(name, text)

    def _print(self, name: str, text: str) -> None:
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        click.echo(f"{click.style(f'{name:<20}', fg=colour)} {text}")
