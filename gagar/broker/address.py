"""Where the broker is: the cluster that the run file names, or the local broker that is running now.

In: a `Run`. Out: its `KafkaTable` with an address. Nothing is started and nothing is connected to.
"""

import shlex
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gagar.config import KafkaTable, Run
from gagar.errors import ConfigError, UnavailableError
from gagar.processes.identity import is_alive

STATE_FILE = "broker.json"


class BrokerState(msgspec.Struct, frozen=True, kw_only=True):
    """`broker.json`: the local broker that was started last in a directory. Example address: `127.0.0.1:43121`."""

    address: str
    """For clients, `host:port`."""
    controller_address: str
    """Of the KRaft controller in the same process."""
    pid: int
    identity: str
    """When the process was started, see `gagar.processes.identity`; a recycled pid has another one."""


def broker_dir(run: Run) -> Path:
    """Directory of the local broker's data, logs and state."""
    return run.dir / "broker"


def last_state(directory: Path) -> BrokerState | None:
    """What the last start wrote; none if there was no start, or if the file cannot be read."""
    try:
        return msgspec.json.decode((directory / STATE_FILE).read_bytes(), type=BrokerState)
    except (OSError, msgspec.DecodeError):
        return None


def running_state(directory: Path) -> BrokerState | None:
    """The broker whose process lives now, or none."""
    state = last_state(directory)
    return state if state is not None and is_alive(state.pid, state.identity) else None


def names_cluster(run: Run) -> bool:
    """Whether the run file names a cluster; if not, the local broker is meant. Raises ConfigError if that one is to be met with
    what it does not speak."""
    protocol = run.kafka.security_protocol
    if not run.kafka.bootstrap_servers and protocol != "PLAINTEXT":
        raise ConfigError(
            f"kafka.security_protocol: expected PLAINTEXT with the local broker, got {protocol}; set kafka.bootstrap_servers"
        )
    return bool(run.kafka.bootstrap_servers)


def cluster_now(run: Run) -> KafkaTable:
    """The cluster of the run file, or else the local broker that runs now. Raises UnavailableError if there is neither."""
    if names_cluster(run):
        return run.kafka
    state = running_state(broker_dir(run))
    if state is None:
        raise UnavailableError(
            f"kafka.bootstrap_servers: expected a running broker in {broker_dir(run)}, got none; "
            f"start one with {broker_command('start', broker_dir(run))}"
        )
    return replace(run.kafka, bootstrap_servers=state.address)


def broker_command(verb: str, directory: Path) -> str:
    """The whole command for the local broker in `directory`, whatever run file is meant. Example: `gagar broker stop ...`."""
    return f"`gagar broker {verb} --set {shlex.quote(f'run.dir={directory.parent}')}`"


def no_cluster(servers: str, got: str = "none") -> UnavailableError:
    """What to tell who named a cluster that does not answer."""
    return UnavailableError(
        f"kafka.bootstrap_servers: expected a Kafka cluster that answers at {servers}, got {got}; start it or mend the address"
    )
