"""`gagar run STAGE`: one process of one stage, until it is told to stop or has reached its planned end."""

import logging

import click

from gagar.cli.run_file import check_run, run_options
from gagar.cli.saved_run import save_run
from gagar.config import Run
from gagar.processes.logs import LogFormat, configure_logs
from topology.composition import find_stage, serve

logger = logging.getLogger(__name__)


@click.command()
@click.argument("stage", metavar="STAGE")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@run_options
def run(run: Run, stage: str, log_format: LogFormat) -> None:
    """Run one process of one STAGE; `gagar topics graph` shows them all."""
    chosen = find_stage(stage)
    resources = check_run(run)
    configure_logs(log_format)
    for told in save_run(run):
        logger.warning("settings %s", told)
    serve(chosen, resources)
