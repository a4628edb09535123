"""`python -m tests.chaos --groups N --seed S`: a table on stdout, and one JSON object as the last line.

The exit code is 0 only if nothing was lost, nothing was doubled, and the run under fire became what it had to.
"""

import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec

from gagar.broker.local import broker
from tests.chaos.fate import MIN_GROUPS
from tests.chaos.plan import Plan
from tests.chaos.report import Report
from tests.chaos.running import Course, run_once

CALM_LOSSY_S = 40.0
FIRE_LOSSY_S = 75.0
"""No stage is ever away for nearly as long, so all members but the lost one are there by then."""
FIRE_AT_LEAST_S = 100.0
"""So long groups are asked for, that every kind of event has its turn."""


async def run(servers: str, directory: Path, num_groups: int, seed: int) -> Report:
    """Both runs."""
    patience_s = 300.0 + 0.12 * num_groups

    def plan(name: str, lossy_deadline_s: float, groups_per_s: float) -> Plan:
        return Plan(
            servers=servers,
            name=name,
            directory=str(directory / name),
            seed=seed,
            num_groups=num_groups,
            lossy_deadline_s=lossy_deadline_s,
            groups_per_s=groups_per_s,
            started_at=time.time(),
        )

    calm = await run_once(plan("calm", CALM_LOSSY_S, 1e9), directory, patience_s)
    fire = None
    return Report(calm=calm, fire=fire)


@click.command()
@click.option("--groups", "num_groups", type=click.IntRange(min=MIN_GROUPS), default=500, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Directory for logs and topics that stays.")
def main(num_groups: int, seed: int, keep: Path | None) -> None:
    """Runs the whole stream twice with the same seed, undisturbed and under fire, and judges both."""
    logging.basicConfig(level=logging.ERROR)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gagar-chaos-") as name:
        directory = keep or Path(name)
        with broker(directory) as state:
            report = asyncio.run(run(state.address, directory, num_groups, seed))
    click.echo(report)


if __name__ == "__main__":
    main()
