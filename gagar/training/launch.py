"""Starts the ranks of a learner as processes of this machine: all of them run, or none.

In: the command of a rank, and the bytes that it finds on its standard input. Out: an exit code. Each rank keeps its standard
input open and watches it: when it ends, so has the parent, however that happened, and the rank ends at once.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

logger = logging.getLogger(__name__)
POLL_S = 0.1
GRACE_S = 13.0
"""From the first SIGTERM to SIGKILL."""
LOOPBACK = "127.0.0.1"


def launch(command: Sequence[str], payload: bytes, num_ranks: int) -> int:
    """Runs `num_ranks` processes to their end and answers the exit code: 0 only if all ended with 0.

    When one fails the others are stopped. SIGTERM and SIGINT are passed on as SIGTERM.
    """
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    children: list[subprocess.Popen[bytes]] = []
    try:
        port = free_port()
        for rank in range(num_ranks):
            child = _start(command, payload, rank, num_ranks, port)
            children.append(child)
        return _attend(children, stopping)
    finally:
        for child in children:
            child.kill()
            child.wait()
            if child.stdin:
                child.stdin.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])


def _start(command: Sequence[str], payload: bytes, rank: int, num_ranks: int, port: int) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
    }
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo looks up the host's name, which need not resolve
    child = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    assert child.stdin is not None
    try:
        child.stdin.write(len(payload).to_bytes(8, "big") + payload)
        child.stdin.flush()
    except BrokenPipeError:
        logger.warning("learner rank ended at its start rank=%d", rank)
    return child


def _attend(children: Sequence["subprocess.Popen[bytes]"], stopping: threading.Event) -> int:
    """Waits for all; a failed one, or a stop, ends the others."""
    while not stopping.is_set():
        codes = [child.poll() for child in children]
        failure = _failure(codes)
        if failure:
            logger.warning("learner rank failed exit_codes=%s", codes)
            _end(children)
            return failure
        if None not in codes:
            return 0
        time.sleep(POLL_S)
    return _end(children)


def _end(children: Sequence["subprocess.Popen[bytes]"]) -> int:
    """Stops all within the grace time; the exit code: a rank that SIGTERM met before it could listen has not failed."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + GRACE_S
    while None in (codes := [child.poll() for child in children]):
        if time.monotonic() > deadline:
            return 1
        time.sleep(POLL_S)
    return _failure([code for code in codes if code != -signal.SIGTERM])


def _failure(codes: Sequence[int | None]) -> int:
    """The first exit code that tells of a failure, 1 for a signal; 0 if there is none."""
    return next((max(code, 1) for code in codes if code), 0)


def receive_payload() -> bytes:
    """In a rank: what the parent wrote; from then on the end of standard input ends this process with code 1."""
    stream = sys.stdin.buffer
    payload = stream.read(int.from_bytes(stream.read(8), "big"))
    threading.Thread(target=_die_with_parent, name="parent watch", daemon=True).start()
    return payload


def _die_with_parent() -> None:
    # Unbuffered, since a thread inside a buffered read would hold the stream's lock at exit.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)
