"""Ranks as processes: small ones without torch."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from gagar.processes.identity import identity
from gagar.training.launch import free_port, launch

PRELUDE = """
import os, signal, sys, time
from pathlib import Path
from gagar.training.launch import receive_payload
payload = receive_payload().decode()
rank = os.environ["RANK"]
Path(payload, rank).write_text(f"{os.getpid()} {os.environ['WORLD_SIZE']} {os.environ['MASTER_PORT']}")
"""
WAIT_S = 20.0


def command(body: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + body]


def wait_until(path: Path) -> str:
    deadline = time.monotonic() + WAIT_S
    while not (path.is_file() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.01)
    return path.read_text()


def wait_dead(pid: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while identity(pid) is not None:
        assert time.monotonic() < deadline, f"{pid} lives on"
        time.sleep(0.01)


def test_every_rank_gets_payload_rank_and_meeting_point(tmp_path: Path) -> None:
    assert launch(command(""), str(tmp_path).encode(), 3) == 0
    answers = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [answer[1] for answer in answers] == ["3", "3", "3"]
    assert len({answer[2] for answer in answers}) == 1


def test_when_one_rank_fails_the_others_end_and_its_code_is_told(tmp_path: Path) -> None:
    body = "sys.exit(2) if rank == '1' else time.sleep(60)"
    assert launch(command(body), str(tmp_path).encode(), 2) == 2


def test_a_rank_that_is_killed_counts_as_failed(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), signal.SIGKILL) if rank == '0' else time.sleep(60)"
    assert launch(command(body), str(tmp_path).encode(), 2) == 1


def test_sigterm_is_passed_on(tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); Path(payload, 'up' + rank).write_text('x'); time.sleep(60)"

    def stop() -> None:
        for rank in range(2):
            wait_until(tmp_path / f"up{rank}")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    started = time.monotonic()
    assert launch(command(body), str(tmp_path).encode(), 2) == 0
    thread.join()
    assert time.monotonic() - started < WAIT_S
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_ranks_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    body = "time.sleep(60)"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from gagar.training.launch import launch; launch({command(body)!r}, {str(tmp_path).encode()!r}, 2)",
        ]
    )
    pids = [int(wait_until(tmp_path / str(rank)).split()[0]) for rank in range(2)]
    parent.kill()
    parent.wait()
    for pid in pids:
        wait_dead(pid)


def test_a_free_port_can_be_listened_on() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
