"""`gagar run STAGE`: one process of one stage, until it is told to stop or has reached its planned end."""

import click

from gagar.cli.logs import LogFormat, configure_logs
from gagar.cli.run_file import check_run, run_options, settings_for, stage_module
from gagar.config import Run
from gagar.errors import ConfigError
from gagar.stream.spec import Stage


@click.command()
@click.argument("stage", metavar="STAGE")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@run_options
def run(run: Run, stage: str, log_format: LogFormat) -> None:
    """Run one process of one STAGE; `gagar topics graph` shows them all."""
    chosen = find_stage(stage)
    check_run(run)
    configure_logs(log_format)
    stage_module(chosen).main(settings_for(chosen, run))


def find_stage(name: str) -> Stage:
    """The stage of that name; raises ConfigError that lists the names."""
    from topology.stages import STAGES

    for stage in STAGES:
        if stage.name == name:
            return stage
    raise ConfigError(f"stage: expected one of {', '.join(stage.name for stage in STAGES)}, got {name}")
