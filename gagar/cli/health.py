"""`gagar health`: how the processes of stages on this machine are. For people, and for health checks of containers.

It asks no broker and reads no run file: each process tells of itself, see `gagar.health`.
"""

import time

import click
import msgspec

from gagar.health.judging import Health, judged
from gagar.health.reporter import health_directory, read_files


@click.command()
@click.argument("stage", required=False, metavar="[STAGE]")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def health(context: click.Context, stage: str | None, is_json: bool) -> None:
    """Tell whether the processes of this machine's stages, or of one STAGE, are alive, and what they wait for.

    Exits with 0 if all are healthy, with 1 if one is not or if there is none. Unhealthy is what only a new start mends: a
    blocked event loop, a stopped process, work that does not go on. A stage that waits for its broker is healthy.
    """
    found = health_of(stage)
    is_healthy = bool(found) and all(process.is_healthy for process in found)
    if is_json:
        click.echo(msgspec.json.encode({"is_healthy": is_healthy, "processes": found}).decode())
    else:
        for process in found:
            click.echo(process.line())
        if not found:
            click.echo(f"{stage or 'stages'}: expected a process on this machine, got none")
    context.exit(0 if is_healthy else 1)


def health_of(stage: str | None) -> list[Health]:
    """The processes of all stages, or of one, that this user runs on this machine. Raises ConfigError for an unknown stage."""
    if stage is not None:
        from topology.composition import find_stage

        find_stage(stage)
    now = time.monotonic()
    return [judged(file, now) for file in read_files(health_directory()) if stage in (None, file.stage)]
