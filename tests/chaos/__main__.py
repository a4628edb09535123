"""`python -m tests.chaos --groups N --seed S`: tables on stdout, and one JSON object as the last line.

The exit code is 0 only if nothing was lost, nothing was doubled, and the run under fire became what it had to.
"""

import asyncio
import logging
import resource
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from gagar.broker.local import broker
from tests.broker.cluster import NUM_NODES, cluster
from tests.chaos.events import Arena
from tests.chaos.expected_outcomes import MIN_GROUPS, num_padding
from tests.chaos.plan import LONG_GROUPS, SOAK, SOAK_GROUPS, Pace, Plan
from tests.chaos.report import Report
from tests.chaos.running import Log, run_once
from tests.chaos.schedule import fire
from tests.chaos.slots import Slot

CALM_LOSSY_S, FIRE_LOSSY_S = 20.0, 60.0
"""Deadlines of groups that miss a member: all others have a verdict by then, as none of them meets so many events."""
FIRE_AT_LEAST_S = 100.0
"""So long groups are asked for, that most kinds of events have had their turn; the last groups wait for the others."""
UNPACED = 1e9
"""Groups a second: as many as admission allows."""


async def run(servers: str, directory: Path, num_groups: int, seed: int, num_brokers: int, *, is_fire_only: bool) -> Report:
    """Both runs, or the one under fire."""
    began = time.monotonic()
    timeout_s = (300.0 + 0.12 * num_groups) * (1.0 if num_brokers == 1 else 2.0)
    pace = SOAK if num_groups >= SOAK_GROUPS else Pace()
    padding = num_padding(seed, num_groups, pace.groups_per_step)
    deadline_factor = 1.0 if num_groups < LONG_GROUPS else 2.0 if num_groups < SOAK_GROUPS else 5.0

    def plan(name: str, lossy_deadline_s: float, groups_per_s: float) -> Plan:
        return Plan(
            servers=servers,
            name=name,
            directory=str(directory / name),
            seed=seed,
            num_groups=num_groups + padding,
            num_padding=padding,
            lossy_deadline_s=lossy_deadline_s * deadline_factor,
            groups_per_s=groups_per_s,
            started_at=time.time(),
            num_brokers=num_brokers,
            pace=pace,
        )

    calm = None if is_fire_only else await run_once(plan("calm", CALM_LOSSY_S, UNPACED), directory, timeout_s)
    burning = plan("fire", FIRE_LOSSY_S, num_groups / FIRE_AT_LEAST_S)
    if num_brokers > 1:
        burning = replace(burning, lossy_deadline_s=burning.lossy_deadline_s + 2 * burning.without_quorum_s)

    def fire_at(stages: Mapping[str, Slot], log: Log) -> Coroutine[None, None, None]:
        return fire(Arena(burning, directory, stages, log))

    under_fire = await run_once(burning, directory, timeout_s, fire_at)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return Report(calm=calm, fire=under_fire, duration_s=time.monotonic() - began, driver_peak_bytes=peak_bytes)


@contextmanager
def brokers(directory: Path, num_brokers: int) -> Iterator[str]:
    """The local broker, or a cluster of three, for the length of a `with`."""
    if num_brokers == 1:
        with broker(directory) as state:
            yield state.address
    else:
        with cluster(directory) as nodes:
            yield nodes.servers


@click.command()
@click.option("--groups", "num_groups", type=click.IntRange(min=MIN_GROUPS), default=500, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--brokers", "num_brokers", type=click.Choice([1, NUM_NODES]), default=1, show_default=True)
@click.option("--fire-only", "is_fire_only", is_flag=True, help="Without the undisturbed run, and the comparison with it.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Directory for logs and topics that stays.")
def main(num_groups: int, seed: int, num_brokers: int, is_fire_only: bool, keep: Path | None) -> None:
    """Runs the whole stream twice with the same seed, undisturbed and under fire, and judges both."""
    logging.basicConfig(level=logging.ERROR)
    for name in ("aiokafka", "kafka"):  # they tell of every moment without a broker
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="gagar-chaos-") as name:
        directory = keep or Path(name)
        with brokers(directory, num_brokers) as servers:
            report = asyncio.run(run(servers, directory, num_groups, seed, num_brokers, is_fire_only=is_fire_only))
    click.echo(f"{report}\n")
    click.echo(msgspec.json.encode(report.figures).decode())
    sys.exit(1 if report.faults else 0)


if __name__ == "__main__":
    main()
