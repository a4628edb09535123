"""Three Kafka nodes on this machine, each of them broker and controller; Kafka's own topics have three replicas there.

In: a directory. Kept: a folder for each node, as `gagar.broker.local` keeps one for its only node, with the same settings but
for `SETTINGS`. A node that was killed or stopped comes back with `start_node`, at the same address and with the same data.
"""

import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from gagar.broker import local
from gagar.broker.address import BrokerState, last_state, running_state
from gagar.broker.local import START_TIMEOUT_S, stop_broker
from gagar.broker.probe import PORTS, is_free
from gagar.processes.log_tail import fresh_log
from gagar.processes.orphan_cleanup import OrphanCleanup, environment

NUM_NODES = 3
HEAP = ("-Xms96m", "-Xmx384m")
"""The later of two settings counts, in Java's arguments as in a file of properties."""
Way = Literal["freeze", "kill", "stop"]
"""How two nodes go: SIGSTOP, SIGKILL, or one after the other in good order, so that the third knows that it is alone."""
CLUSTER_ID = "g" + 21 * "A"
SETTINGS = """
node.id={number}
controller.quorum.bootstrap.servers={controllers}
min.insync.replicas=2
offsets.topic.num.partitions=3
offsets.topic.replication.factor=3
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
replica.lag.time.max.ms=6000
"""


class Cluster(msgspec.Struct, frozen=True):
    """Three nodes that answer."""

    directories: tuple[Path, ...]
    """Of the nodes."""

    @property
    def servers(self) -> str:
        """All three, as [kafka] takes them."""
        return ",".join(state.address for state in map(last_state, self.directories) if state)


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Three nodes for the length of a `with`, even if this process is killed in it. Raises UnavailableError without Java or
    jars."""
    directory = directory.resolve()
    found = Cluster(node_directories(directory))
    with OrphanCleanup(directory, is_exclusive=True):
        try:
            for path, state in zip(found.directories, _begin(found, environment(directory)), strict=True):
                _until_ready(path, state)
            yield found
        finally:
            for path in found.directories:
                kill_node(path)


def node_directories(directory: Path) -> tuple[Path, ...]:
    """The folders of a cluster's nodes."""
    return tuple(directory / f"node-{number}" for number in range(1, NUM_NODES + 1))


def start_node(directory: Path, environment: Mapping[str, str]) -> BrokerState:
    """A node that was there before, and answers again."""
    state = last_state(directory)
    assert state is not None, f"{directory}: expected a node that was there before, got none"
    fresh_log(directory / local.LOG)
    state = _launch(
        directory, environment, *(int(text.rpartition(":")[2]) for text in (state.address, state.controller_address))
    )
    _until_ready(directory, state)
    return state


def kill_node(directory: Path) -> None:
    """SIGKILL of the node's process, frozen or not; returns when it is gone."""
    state = running_state(directory)
    if state is not None:
        os.kill(state.pid, signal.SIGKILL)
        while running_state(directory) is not None:
            time.sleep(local.POLL_S)


def send_away(directories: Sequence[Path], way: Way) -> None:
    """Two of the three nodes go: no write is acknowledged until they are back, no leader is chosen."""
    for directory in directories:
        if way == "freeze":
            _signal(directory, signal.SIGSTOP)
        elif way == "kill":
            kill_node(directory)
        else:
            stop_broker(directory)


def bring_back(directories: Sequence[Path], environment: Mapping[str, str]) -> None:
    """Whoever was sent away is there again, in whatever way it went."""
    for directory in directories:
        _signal(directory, signal.SIGCONT)
        if running_state(directory) is None:
            start_node(directory, environment)


def _signal(directory: Path, number: signal.Signals) -> None:
    state = running_state(directory)
    if state is not None:
        os.kill(state.pid, number)


def _begin(found: Cluster, environment: Mapping[str, str]) -> list[BrokerState]:
    """Formats each node and starts its process: none of them is ready before another one is."""
    ports = list(islice(filter(is_free, random.sample(PORTS, len(PORTS))), 2 * NUM_NODES))
    pairs = list(zip(found.directories, ports[:NUM_NODES], ports[NUM_NODES:], strict=True))
    controllers = [f"127.0.0.1:{controller_port}" for *_, controller_port in pairs]
    voters = ",".join(f"{number}@{address}:{_directory_id(number)}" for number, address in enumerate(controllers, 1))
    states = []
    for number, (path, port, controller_port) in enumerate(pairs, 1):
        path.mkdir(parents=True)
        own = SETTINGS.format(number=number, controllers=",".join(controllers))
        (path / local.PROPERTIES).write_text(local.server_properties(port, controller_port) + own, encoding="ascii")
        command = local._java_command(path)
        local._format(path, command, fresh_log(path / local.LOG), "--initial-controllers", voters, cluster_id=CLUSTER_ID)
        states.append(_launch(path, environment, port, controller_port))
    return states


def _directory_id(number: int) -> str:
    return f"n{number}" + 20 * "A"


def _launch(directory: Path, environment: Mapping[str, str], port: int, controller_port: int) -> BrokerState:
    return local._launch(directory, [*local._java_command(directory), *HEAP], environment, port, controller_port)


def _until_ready(directory: Path, state: BrokerState) -> None:
    log = directory / local.LOG
    if not local._becomes_ready(state, directory, START_TIMEOUT_S):
        raise AssertionError(f"node in {directory}: expected an answer, got its end\n{log.read_text(errors='replace')[-3000:]}")
