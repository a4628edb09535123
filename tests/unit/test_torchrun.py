"""Ranks as processes under torchrun: small ones, without torch."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gagar.processes.identity import identity
from gagar.training.torchrun import GRACE_S, PARENT, SIGNALS, launch

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]

PRELUDE = """
import os, signal, sys, time
from pathlib import Path
from gagar.training.torchrun import end_with_parent
end_with_parent()
rank, directory = os.environ["RANK"], Path(sys.argv[1])
told = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
(directory / f".{rank}").write_text(" ".join([str(os.getpid()), *(os.environ[name] for name in told)]))
(directory / f".{rank}").rename(directory / rank)
"""
SLACK_S = 12.0
"""With the grace time it stays below torchrun's own, of 30 s."""
WAIT_S = 180.0
"""A process that loads torch takes a minute where many others do."""


def command(directory: Path, body: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + body, str(directory), "a $b ${local_rank}"]


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


def test_every_rank_gets_the_command_its_rank_and_a_meeting_point_on_the_loopback(tmp_path: Path) -> None:
    assert launch(command(tmp_path, "(directory / ('argument' + rank)).write_text(sys.argv[2])"), 3) == 0
    answers = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [answer[1] for answer in answers] == ["3", "3", "3"]
    assert {answer[2] for answer in answers} == {"127.0.0.1"}
    assert len({answer[3] for answer in answers}) == 1
    assert {answer[4] for answer in answers} == {"lo"}
    assert [(tmp_path / f"argument{rank}").read_text() for rank in range(3)] == ["a $b ${local_rank}"] * 3


def test_when_one_rank_fails_the_others_end_and_its_code_is_told(tmp_path: Path) -> None:
    body = "sys.exit(2) if rank == '1' else time.sleep(600)"
    started = time.monotonic()
    assert launch(command(tmp_path, body), 2) == 2
    assert time.monotonic() - started < WAIT_S


def test_a_rank_that_is_killed_counts_as_failed(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), signal.SIGKILL) if rank == '0' else time.sleep(600)"
    assert launch(command(tmp_path, body), 2) == 1


UP = "signal.signal(signal.{name}, {handler}); (directory / ('up' + rank)).write_text('x'); time.sleep(600)"
QUIET = "lambda *_: ((directory / ('ended' + rank)).write_text('x'), sys.exit(0))"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_is_passed_on_and_a_stop_in_good_order_is_no_failure(tmp_path: Path, name: str) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    stopping = threading.Thread(target=stop_when_up, args=(tmp_path, 2, getattr(signal, name)))
    stopping.start()
    started = time.monotonic()
    assert launch(command(tmp_path, UP.format(name=name, handler=QUIET)), 2) == 0
    stopping.join()
    assert time.monotonic() - started < WAIT_S
    assert all((tmp_path / f"ended{rank}").is_file() for rank in range(2))
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_ranks_that_do_not_stop_are_killed_in_time(tmp_path: Path) -> None:
    threading.Thread(target=stop_when_up, args=(tmp_path, 1, signal.SIGTERM)).start()
    deaf = "lambda *_: (directory / 'told').write_text('x')"
    assert launch(command(tmp_path, UP.format(name="SIGTERM", handler=deaf) + "; time.sleep(600)"), 1) == 1
    pid, *_ = (tmp_path / "0").read_text().split()
    assert identity(int(pid)) is None
    assert time.time() - (tmp_path / "told").stat().st_mtime < GRACE_S + SLACK_S


FAILS = "lambda *_: os._exit(int(rank) and 6 + int(rank))"


def test_a_rank_that_fails_while_it_stops_is_named_and_its_code_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    threading.Thread(target=stop_when_up, args=(tmp_path, 3, signal.SIGTERM)).start()
    assert launch(command(tmp_path, UP.format(name="SIGTERM", handler=FAILS)), 3) == 7
    told = [record.getMessage() for record in caplog.records if record.name == "gagar.training.torchrun"]
    assert told == [f"learner rank failed while it stopped rank={rank} code={6 + rank}" for rank in (1, 2)]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_ranks_that_are_stopped_before_they_have_begun_have_not_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """One ends by the signal, the other as a command does that is interrupted."""
    number = getattr(signal, name)
    threading.Thread(target=stop_when_up, args=(tmp_path, 2, number)).start()
    begins = f"signal.SIG_DFL if rank == '0' else lambda *_: os._exit({128 + number})"
    assert launch(command(tmp_path, UP.format(name=name, handler=begins)), 2) == 0
    assert not [record for record in caplog.records if record.name == "gagar.training.torchrun"]


def stop_when_up(directory: Path, num_ranks: int, number: signal.Signals) -> None:
    for rank in range(num_ranks):
        wait_until(directory / f"up{rank}")
    os.kill(os.getpid(), number)


def test_ranks_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = f"from gagar.training.torchrun import launch; launch({command(tmp_path, 'time.sleep(600)')!r}, 2)"
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        try:
            pids = [int(wait_until(tmp_path / str(rank)).split()[0]) for rank in range(2)]
        finally:
            parent.kill()
    for pid in pids:
        wait_dead(pid)


def test_a_stop_that_comes_before_the_ranks_is_quiet(tmp_path: Path) -> None:
    """While torch is loaded, which takes seconds."""
    code = (
        "import os, signal, sys, types; from gagar.training.torchrun import launch\n"
        "class Slow:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'torch': os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Slow()); launch(['false'], 2)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_rank_whose_parent_is_gone_before_it_looks_ends(tmp_path: Path) -> None:
    code = "import time; from gagar.training.torchrun import end_with_parent; end_with_parent(); time.sleep(600)"
    environment = {**os.environ, PARENT: str(2**22 + 1)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, timeout=WAIT_S, check=False)
    assert ended.returncode == 1
