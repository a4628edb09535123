"""A process is known by when it was started, not by its number alone."""

import os
import subprocess
import sys

from gagar.processes.identity import identity, is_alive


def test_this_process_has_a_steady_identity() -> None:
    mine = identity(os.getpid())
    assert mine is not None
    assert identity(os.getpid()) == mine
    assert is_alive(os.getpid(), mine)


def test_two_processes_differ_and_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = identity(child.pid)
    assert born is not None
    assert born != identity(os.getppid())
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity(child.pid) is None
    assert not is_alive(child.pid, born)
    child.wait()


def test_a_pid_that_nobody_has_is_dead() -> None:
    assert identity(2**22 + 1) is None
    assert identity(0) is None
    assert identity(-5) is None
