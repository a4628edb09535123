"""Which process is which: an identity that a recycled pid cannot bear, so that stale pid files harm nobody."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path


def identity(pid: int) -> str | None:
    """When `pid` was started, as text to compare; none if no such process lives (a zombie is dead)."""
    if pid <= 0:
        return None
    if sys.platform == "linux":
        return _linux_identity(pid)
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.Error:
        return None


def _linux_identity(pid: int) -> str | None:
    """Boot and clock ticks since boot (field 22 of proc_pid_stat(5)): unlike wall times they never shift.

    A zombie with several threads (field 20) is still dying: it may hold ports and locks.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    state, num_threads, started = fields[0], int(fields[17]), fields[19]
    is_dead = state == "X" or (state == "Z" and num_threads <= 1)
    return None if is_dead else f"{boot}:{started}"


def is_alive(pid: int, expected: str) -> bool:
    """Whether the process that had this identity still lives."""
    return identity(pid) == expected


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signals the process group that `pid` leads; quiet if it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def sign(descriptor: int, text: str = "") -> None:
    """Writes into a lock file who holds it: `text`, or else the pid of this process."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, (text or str(os.getpid())).encode("ascii"), 0)
