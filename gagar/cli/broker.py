"""`gagar broker`: the local broker of a run file's `run.dir`."""

import json

import click

from gagar.broker.address import broker_dir, running_state
from gagar.broker.local import start_broker, stop_broker
from gagar.broker.probe import is_answering
from gagar.cli.run_file import check_dir, run_options
from gagar.config import Run
from gagar.errors import ConfigError


@click.group()
def broker() -> None:
    """Start, stop or look at the local Kafka broker."""


@broker.command()
@run_options
def start(run: Run) -> None:
    """Start it, unless it runs already, and wait until it answers."""
    if run.kafka.bootstrap_servers:
        raise ConfigError(
            f"kafka.bootstrap_servers: expected none for a local broker, got {run.kafka.bootstrap_servers}; "
            "leave it out, or start no local broker"
        )
    check_dir(run)
    click.echo(start_broker(broker_dir(run), timeout_s=run.kafka.start_timeout_s).address)


@broker.command()
@run_options
def stop(run: Run) -> None:
    """Stop it in good order; its data stay."""
    click.echo("stopped" if stop_broker(broker_dir(run)) else "not running")


@broker.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@run_options
@click.pass_context
def status(context: click.Context, run: Run, as_json: bool) -> None:
    """Say whether it runs and answers; exit code 1 if not."""
    state = running_state(broker_dir(run))
    is_up = state is not None and is_answering(state.address)
    facts = {
        "running": state is not None,
        "answering": is_up,
        "address": state.address if state else "",
        "pid": state.pid if state else 0,
        "dir": str(broker_dir(run)),
    }
    if as_json:
        click.echo(json.dumps(facts))
    elif state is None:
        click.echo(f"not running; its data are in {facts['dir']}")
    else:
        click.echo(f"{'answering' if is_up else 'not answering'} at {state.address}, pid {state.pid}, data in {facts['dir']}")
    context.exit(0 if is_up else 1)
