"""Whether a broker answers: one ApiVersions request over a plain socket, the only one that every Kafka since 0.10 understands.

An open port is not enough: the kernel accepts connections long before the broker serves them.
"""

import random
import socket
import struct
import time
from collections.abc import Sequence
from itertools import islice

from gagar.errors import UnavailableError

REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""Length, api key 18 (ApiVersions), version 0, correlation id 1, no client id."""

POLL_S = 0.1
PORTS = range(20_000, 30_000)
"""Below the range from which systems take ports of outgoing connections: a client that retries a dead broker's port in that
range can connect to itself, and then holds the port against the broker's restart."""


def is_answering(address: str, timeout_s: float = 1.0) -> bool:
    """Whether a Kafka broker at `host:port` answers within `timeout_s`."""
    host, _, port = address.rpartition(":") if ":" in address else (address, "", "9092")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as connection:
            connection.sendall(REQUEST)
            answer = connection.recv(8, socket.MSG_WAITALL)
    except (OSError, ValueError):
        return False
    return len(answer) == 8 and answer[4:] == REQUEST[8:12]


def is_any_answering(addresses: Sequence[str], timeout_s: float) -> bool:
    """Waits up to about `timeout_s` for one of the brokers to answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = deadline - time.monotonic()
        if any(is_answering(address, max(0.05, left_s / len(addresses))) for address in addresses):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port of the loopback interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(preferred: tuple[int, ...]) -> list[int]:
    """Two different free ports: the preferred ones if both are free. Raises UnavailableError."""
    if len(preferred) == 2 and all(is_free(port) for port in preferred):
        return list(preferred)
    chosen = list(islice(filter(is_free, random.sample(PORTS, len(PORTS))), 2))
    if len(chosen) < 2:
        raise UnavailableError(f"ports {PORTS.start} to {PORTS.stop - 1}: expected 2 free ones, got {len(chosen)}")
    return chosen
