"""From the last verdict of a group to its visible advantages, at an even pace of groups through the whole chain."""

import asyncio
import time

from gagar.stream.together import together
from tests.bench.chain import Cluster, Driver, driver, finished, warm_up
from topology.topics import ADVANTAGES


async def publish_times(cluster: Cluster, name: str, num_groups: int, groups_per_s: float) -> list[float]:
    """Seconds of each group. The verdict's time is that of its sending (to the millisecond), before its own commit."""
    cluster.create_topics(name)
    with cluster.stages(name) as stages:
        async with driver(cluster, name) as asking:
            await warm_up(asking, stages.values())
            num_warm, visible = asking.num_groups, dict[str, float]()
            watching = asking.watch(ADVANTAGES, visible, num_warm + num_groups)
            await finished(together(watching, _ask(asking, num_groups, groups_per_s)), stages.values())
            sent = await asking.last_verdicts()
    keys = [f"t-{number:06d}" for number in range(num_warm, num_warm + num_groups)]
    return [visible[key] - sent[key] for key in keys]


async def _ask(asking: Driver, num_groups: int, groups_per_s: float) -> None:
    started = time.perf_counter()
    for number in range(num_groups):
        await asyncio.sleep(max(0.0, started + number / groups_per_s - time.perf_counter()))
        await asking.request(1)
