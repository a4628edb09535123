"""`gagar demo`: the whole loop on this machine, watched, audited and reported.

The last line on stdout is one JSON object, see gagar.report.summary. Exit 0: planned end reached and audit clean.
"""

from datetime import UTC, datetime

import click


@click.command()
@click.option("--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a value; repeatable.")
def demo(overrides: tuple[str, ...]) -> int:
    """Train the nano policy on this machine and watch it learn.

    Starts a local Kafka and every stage with the packaged nano run file under a fresh run name, shows what goes on, stops by
    itself, audits the topics and writes a report. Data and logs are in .gagar in the current directory. No GPU is needed.
    """
    from gagar.cli.up.demo_run import run_demo

    return run_demo((f"run.name={fresh_name(datetime.now(UTC))}", *overrides))


def fresh_name(now: datetime) -> str:
    """A run name of its own. Example: `nano-20261129-201244`."""
    return f"nano-{now:%Y%m%d-%H%M%S}"
