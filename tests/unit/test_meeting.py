"""Brokers that are asked how they want to be met, and answer in strange ways."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gagar.broker.meeting import check_cluster
from gagar.config import KafkaTable
from gagar.errors import ConfigError, UnavailableError


@contextmanager
def server(*answers: bytes) -> Iterator[str]:
    """A server that takes one connection after the other, and answers what comes first on each."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    request = connection.recv(4096)
                    connection.sendall(answer.replace(b"ID", request[8:12]))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def framed(body: bytes) -> bytes:
    """An answer to whatever request comes."""
    return struct.pack(">i", 4 + len(body)) + b"ID" + body


HELLO = framed(b"\0\0")
"""The beginning of an answer to ApiVersions: no error."""


@pytest.mark.parametrize("answer", [b"", b"\0", framed(b""), framed(b"\0\7"), b"HTTP/1.1 400 Bad Request\r\n"])
def test_a_broker_that_does_not_say_how_to_log_in_is_left_to_the_clients(answer: bytes) -> None:
    with server(HELLO, answer) as address:
        check_cluster(KafkaTable(bootstrap_servers=address), 5.0)


def test_mechanisms_are_told_as_far_as_they_can_be_read() -> None:
    mechanisms = struct.pack(">h", 33) + struct.pack(">ih5sh3s", 2**31 - 1, 5, b"PLAIN", 3, b"A\xffB")
    with server(HELLO, framed(mechanisms)) as address:
        kafka = KafkaTable(bootstrap_servers=address)
        with pytest.raises(ConfigError, match=r"expected SASL_PLAINTEXT, since .* wants a login by PLAIN, A.B, got PLAINTEXT"):
            check_cluster(kafka, 5.0)


def test_what_answers_nothing_of_kafka_is_no_cluster() -> None:
    with (
        server(*[b"HTTP/1.1 400 Bad Request\r\n"] * 3) as address,
        pytest.raises(UnavailableError, match=r"got none; start it"),
    ):
        check_cluster(KafkaTable(bootstrap_servers=address), 0.0)
