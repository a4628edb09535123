"""Trajectories through the whole chain against the same records through bare clients, on the same broker."""

import time
from typing import Any

import msgspec

from tests.bench.chain import Cluster, driver, finished, warm_up
from tests.bench.core_time import of_process_s
from tests.bench.processes import Child, children
from topology.topics import OUTCOMES


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a number of trajectories."""

    seconds: float
    stored_bytes: int
    """What they added to the broker's disk."""
    cores: dict[str, float]
    """Cores in use meanwhile, by process."""


class Usage:
    """Core time of living processes since now."""

    def __init__(self, cluster: Cluster, processes: dict[str, Child]) -> None:
        self._pids = {name: child.pid for name, child in processes.items()} | {"broker": cluster.state.pid}
        self._before = {name: of_process_s(pid) for name, pid in self._pids.items()}

    def cores(self, seconds: float) -> dict[str, float]:
        return {name: (of_process_s(pid) - self._before[name]) / seconds for name, pid in self._pids.items()}


async def through_chain(cluster: Cluster, name: str, num_groups: int) -> Flow:
    """The chain, warm, with `num_groups` groups asked for at once: from the first request to the last outcome."""
    cluster.create_topics(name)
    with cluster.stages(name) as stages:
        async with driver(cluster, name) as asking:
            await warm_up(asking, stages.values())
            usage, stored, started = Usage(cluster, stages), cluster.stored_bytes(name), time.time()
            await asking.request(num_groups)
            seen: dict[str, float] = {}
            await finished(asking.watch(OUTCOMES, seen, asking.num_groups), stages.values())
            seconds = max(seen.values()) - started
            return Flow(
                seconds=seconds,
                stored_bytes=cluster.stored_bytes(name) - stored,
                cores=usage.cores(time.time() - started),
            )


def through_clients(cluster: Cluster, name: str, num_trajectories: int, compression: str) -> Flow:
    """A bare producer and a bare consumer at once: from the first record sent to the last one received."""
    cluster.create_topics(name)
    arguments = [cluster.state.address, name, str(num_trajectories), compression]
    commands = {kind: ["-m", "tests.bench.raw", kind, *arguments] for kind in ("produce", "consume")}
    with children(cluster.directory, commands) as clients:
        for client in clients.values():
            _report(client, "ready")
        usage, stored, before = Usage(cluster, clients), cluster.stored_bytes(name), time.time()
        clients["produce"].write_line()
        ended = _report(clients["consume"], "ended")
        cores = usage.cores(time.time() - before)
        return Flow(
            seconds=ended - _report(clients["produce"], "started"),
            stored_bytes=cluster.stored_bytes(name) - stored,
            cores=cores,
        )


def _report(client: Child, what: str) -> float:
    """The time of that event, as the client tells it."""
    line = client.read_line()
    if not line:
        client.check()
    told: dict[str, Any] = msgspec.json.decode(line)
    if told["what"] != what:
        raise AssertionError(f"{client.name}: expected {what}, got {told}")
    return float(told["at"])
