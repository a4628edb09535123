"""Messages of one JSON object over a stream socket: four bytes of length, then the text."""

import json
import socket
import struct
from typing import Any

HEADER = struct.Struct("<I")


def send(stream: socket.socket, message: dict[str, Any]) -> None:
    payload = json.dumps(message).encode()
    stream.sendall(HEADER.pack(len(payload)) + payload)


def receive(stream: socket.socket) -> dict[str, Any] | None:
    """The next message; none if the other side is gone."""
    header = _read(stream, HEADER.size)
    payload = _read(stream, HEADER.unpack(header)[0]) if header else b""
    message: dict[str, Any] | None = json.loads(payload) if payload else None
    return message


def _read(stream: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = stream.recv(min(size, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
