"""`gagar dead-letters`: what stages have rejected: a list, one of them, and another try once the cause is gone.

In: the run, ids of dead letters. Out: text, or one JSON object; copies of the records on their topics, each in a transaction.
"""

import asyncio
from contextlib import aclosing

import click

from gagar.cli.ids import LetterId, complete_letters
from gagar.cli.saved_run import reading_options
from gagar.cli.show import as_json, show_letter, tell, with_transport
from gagar.config import Run
from gagar.history.letters import Retried, list_letters, retry_letters
from gagar.history.letters_view import line_object, render_lines, render_retries, retried_object
from gagar.records import LogRef
from gagar.stream.transport import Transport
from topology.resources import Resources
from topology.stages import STAGES
from topology.topics import TOPICS


@click.group("dead-letters")
def dead_letters() -> None:
    """List, show and retry what stages have rejected.

    The run is the one that started last, unless --run or --set run.name=NAME names another.
    """


@dead_letters.command("list")
@reading_options
@click.option("--stage", default="", type=click.Choice([stage.name for stage in STAGES]), help="Only what this stage rejected.")
@as_json
def list_all(run: Run, stage: str, is_json: bool) -> None:
    """Print every dead letter: its id, its stage, the record and the error."""
    lines = asyncio.run(with_transport(Resources(run), lambda transport: list_letters(transport, TOPICS, stage)))
    tell(is_json, lambda: {"dead_letters": [line_object(line) for line in lines]}, lambda: render_lines(lines))


@dead_letters.command("show")
@click.argument("letter", type=LetterId(), metavar="PARTITION@OFFSET", shell_complete=complete_letters)
@reading_options
@as_json
def show_one(run: Run, letter: LogRef, is_json: bool) -> None:
    """Print one dead letter whole: the error, and what the record holds."""
    show_letter(run, letter, is_json)


@dead_letters.command()
@click.argument(
    "letters", type=LetterId(), nargs=-1, required=True, metavar="PARTITION@OFFSET...", shell_complete=complete_letters
)
@reading_options
@as_json
@click.pass_context
def retry(context: click.Context, run: Run, letters: tuple[LogRef, ...], is_json: bool) -> None:
    """Give rejected records to their stages once more, each exactly once.

    For when the cause is gone: a task that was missing, a bug that is mended. A letter that was retried already is refused, and
    one whose group has closed or ended: its end stands. Exits with 1 if any is refused.
    """
    found = asyncio.run(with_transport(Resources(run), lambda transport: _retry(transport, letters)))
    tell(is_json, lambda: {"letters": [retried_object(retried) for retried in found]}, lambda: render_retries(found))
    context.exit(1 if any(retried.refusal for retried in found) else 0)


async def _retry(transport: Transport, letters: tuple[LogRef, ...]) -> list[Retried]:
    async with aclosing(retry_letters(transport, TOPICS, STAGES, letters)) as found:
        return [retried async for retried in found]
