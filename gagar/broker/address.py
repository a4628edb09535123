"""Where the broker is: the cluster that the run file names, or the local broker that is running now.

In: a `Run`. Out: `host:port,...`. Nothing is started and nothing is connected to.
"""

import shlex
from pathlib import Path

import msgspec

from gagar.config import Run
from gagar.errors import UnavailableError
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


def bootstrap_servers(run: Run) -> str:
    """Addresses for clients; raises UnavailableError if the run file names no cluster and no local broker runs."""
    if run.kafka.bootstrap_servers:
        return run.kafka.bootstrap_servers
    state = running_state(broker_dir(run))
    if state is None:
        raise UnavailableError(
            f"kafka.bootstrap_servers: expected a running broker in {broker_dir(run)}, got none; "
            f"start one with {broker_command('start', broker_dir(run))}"
        )
    return state.address


def broker_command(verb: str, directory: Path) -> str:
    """The whole command for the local broker in `directory`, whatever run file is meant. Example: `gagar broker stop ...`."""
    return f"`gagar broker {verb} --set {shlex.quote(f'run.dir={directory.parent}')}`"


def no_cluster(servers: str, got: str = "none") -> UnavailableError:
    """What to tell who named a cluster that does not answer."""
    return UnavailableError(
        f"kafka.bootstrap_servers: expected a Kafka cluster that answers at {servers}, got {got}; start it or mend the address"
    )
