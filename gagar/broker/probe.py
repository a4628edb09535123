"""Whether a broker answers: one ApiVersions request over a plain socket, the only one that every Kafka since 0.10 understands.

An open port is not enough: the kernel accepts connections long before the broker serves them.
"""

import random
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from itertools import islice

from gagar.errors import UnavailableError

REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""Length, api key 18 (ApiVersions), version 0, correlation id 1, no client id."""

MAX_ANSWER_BYTES = 1 << 20
POLL_S = 0.1
PORTS = range(20_000, 30_000)
"""Below the range from which systems take ports of outgoing connections: a client that retries a dead broker's port in that
range can connect to itself, and then holds the port against the broker's restart."""


def is_answering(address: str, timeout_s: float = 1.0, context: ssl.SSLContext | None = None) -> bool:
    """Whether a Kafka broker at `host:port` answers within `timeout_s`, over TLS if there is a context."""
    try:
        with connected(address, timeout_s, context) as connection:
            return answer_to(connection, REQUEST) is not None
    except (OSError, ValueError):
        return False


def connected(address: str, timeout_s: float, context: ssl.SSLContext | None) -> socket.socket:
    """A connection to `host:port`, over TLS if there is a context. Raises OSError, ssl.SSLError among them, or ValueError."""
    name, _, port = address.rpartition(":") if ":" in address else (address, "", "9092")
    host = name.strip("[]")
    connection = socket.create_connection((host, int(port)), timeout=timeout_s)
    if context is None:
        return connection
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def answer_to(connection: socket.socket, request: bytes) -> bytes | None:
    """What comes after the correlation id in the answer to a request; none if what comes is no answer. Raises OSError."""
    connection.sendall(request)
    size = _received(connection, 4)
    if len(size) < 4 or not 4 <= int.from_bytes(size, "big") <= MAX_ANSWER_BYTES:
        return None
    answer = _received(connection, int.from_bytes(size, "big"))
    return answer[4:] if answer[:4] == request[8:12] else None


def _received(connection: socket.socket, count: int) -> bytes:
    """The next `count` bytes, or fewer if the other side has closed."""
    received = b""
    while len(received) < count and (part := connection.recv(count - len(received))):
        received += part
    return received


def is_any_answering(addresses: Sequence[str], timeout_s: float, context: ssl.SSLContext | None = None) -> bool:
    """Waits up to about `timeout_s` for one of the brokers to answer, over TLS if there is a context."""
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = deadline - time.monotonic()
        if any(is_answering(address, max(0.05, left_s / len(addresses)), context) for address in addresses):
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
