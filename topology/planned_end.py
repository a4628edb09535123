"""Waits for the planned end of a run that others serve: for `gagar audit --wait`, whose answer a container's exit code is, and
for the stages that `gagar run` serves, which end with their run.

In: a run. Out: nothing, after a while. The sampler alone knows that every group has ended; it is gone then, and stays away,
while one that has died is back within seconds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gagar.broker.address import cluster_now
from gagar.config import Run
from gagar.errors import UnavailableError
from gagar.report.progress import Progress
from gagar.stream.kafka.admin import Admin
from topology.stages import SAMPLER
from topology.topics import POLICY_VERSIONS

logger = logging.getLogger(__name__)

LOOK_S = 3.0
NUM_LOOKS = 6
"""In a row that find the end: longer than the session of a member that died, and its new start."""

Look = Callable[[Run], Awaitable[bool]]
"""Whether all steps are made and no sampler is at work. Raises UnavailableError while the brokers do not answer."""


async def wait_for_end(run: Run, look_s: float = LOOK_S, look: Look | None = None) -> None:
    """Until the planned end. A broker that is gone meanwhile is waited for."""
    look, num_ends = look or is_at_end, 0
    while True:
        try:
            num_ends = num_ends + 1 if await look(run) else 0
        except UnavailableError as error:
            logger.warning("planned end not looked for run=%s error=%s", run.run.name, error)
            num_ends = 0
        if num_ends == NUM_LOOKS:
            return
        await asyncio.sleep(look_s)


async def step_of(run: Run) -> int:
    """The newest step of the run's surviving lineage."""
    from gagar.stream.kafka.client import scan

    progress = Progress()
    async for delivery in scan(cluster_now(run), run.run.name, [POLICY_VERSIONS]):
        progress.apply(delivery)
    return progress.snapshot().step


async def is_at_end(run: Run) -> bool:
    """See `Look`."""
    return await step_of(run) >= run.training.num_steps and not await asyncio.to_thread(_has_sampler, run)


def _has_sampler(run: Run) -> bool:
    with Admin(cluster_now(run)) as admin:
        return admin.has_members([run.topic(SAMPLER.name)])
