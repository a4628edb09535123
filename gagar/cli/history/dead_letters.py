"""`gagar dead-letters`: what stages have rejected: a list, one of them, and another try once the cause is gone.

In: the run, ids of dead letters. Out: text, or one JSON object; copies of the records on their topics, each in a transaction.
"""

import click

from gagar.cli.history.ids import LetterId, complete_letters
from gagar.cli.history.show import as_json
from gagar.cli.saved_run import reading_options
from gagar.config import Run
from gagar.records import LogRef
from topology.resources import Resources
from topology.stages import STAGES


@click.group("dead-letters")
def dead_letters() -> None:
    """List, show and retry what stages have rejected.

    The run is the one that started last, unless --run or --set run.name=NAME names another.
    """


@dead_letters.command("list")
@reading_options
@click.option("--stage", type=click.Choice([stage.name for stage in STAGES]), help="Only what this stage rejected.")
@as_json
def list_all(run: Run, stage: str | None, is_json: bool) -> None:
    """Print every dead letter: its id, its stage, the record and the error."""
    from gagar.cli.history import telling

    telling.tell_letters(Resources(run), stage or "", is_json=is_json)


@dead_letters.command("show")
@click.argument("letter", type=LetterId(), metavar="PARTITION@OFFSET", shell_complete=complete_letters)
@reading_options
@as_json
def show_one(run: Run, letter: LogRef, is_json: bool) -> None:
    """Print one dead letter whole: the error, and what the record holds."""
    from gagar.cli.history import telling

    telling.tell_letter(Resources(run), letter, is_json=is_json)


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
    from gagar.cli.history import telling

    are_all_retried = telling.retry_and_tell(Resources(run), letters, is_json=is_json)
    context.exit(0 if are_all_retried else 1)
