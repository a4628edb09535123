"""The most memory of each stage when it starts with a backlog before it.

Stage after stage works off what the one before has written, each alone, so that every one meets the whole backlog.
"""

import asyncio

from gagar.config import KafkaTable
from gagar.stream.kafka.admin import Admin
from tests.bench.chain import GROUP_SIZE, NAMES, Cluster, Driver, driver, finished
from tests.bench.processes import Child
from topology.stages import STAGES
from topology.topics import OUTCOMES

POLL_S = 0.5


async def peak_memory(cluster: Cluster, name: str, num_trajectories: int) -> dict[str, int]:
    """Bytes by stage; the backlog is rounded up to whole groups."""
    cluster.create_topics(name)
    peaks: dict[str, int] = {}
    async with driver(cluster, name) as asking:
        await asking.request(-(-num_trajectories // GROUP_SIZE))
        for stage in NAMES:
            with cluster.stages(name, [stage]) as started:
                child = started[stage]
                await finished(_worked_off(cluster, name, asking, child), [child])
                peaks[stage] = child.peak_bytes()
    return peaks


async def _worked_off(cluster: Cluster, name: str, asking: Driver, child: Child) -> None:
    """The learner's offsets stop before the last transaction marker: it has ended with the last outcome."""
    if child.name == "learner":
        await asking.watch(OUTCOMES, {}, asking.num_groups)
        return
    [stage] = [stage for stage in STAGES if stage.name == child.name]
    with Admin(KafkaTable(bootstrap_servers=cluster.state.address)) as admin:
        while any((await asyncio.to_thread(admin.lags, name, stage)).values()):
            await asyncio.sleep(POLL_S)
