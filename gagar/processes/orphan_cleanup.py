"""Orphan cleanup: what a process starts on behalf of a directory ends with that process, even if it is killed.

In: a directory that stands for the holder. Every process started with `environment(directory)` belongs to it, and so do all
that it starts, whatever sessions and groups those make for themselves: membership is read from the environment of the living.
A small process of its own (`python -m gagar.processes.orphan_cleanup`) waits on a pipe whose end only the holder has; when
the holder is gone, however it went, it ends the members. The next holder of the directory looks for leftovers again.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gagar.errors import UnavailableError
from gagar.processes.identity import sign

VARIABLE = "GAGAR_HOLDER"
NAME_VARIABLE = "GAGAR_PROCESS_NAME"
LOCK_FILE = "holder.lock"
CLEANER = "cleaner"
"""In the lock file while a cleaner is at work, which a new holder waits for; else the pid of a holder."""
TERMINATE_S = 10.0
"""From SIGTERM to SIGKILL for what its holder left behind."""
RELEASE_S = 2.0
POLL_S = 0.05


def environment(directory: Path, name: str = "") -> dict[str, str]:
    """Variables that make a process a member of `directory`; `name` tells it from others there."""
    return {VARIABLE: str(directory.resolve()), NAME_VARIABLE: name}


def members(directory: Path, name: str | None = None) -> list[int]:
    """Pids of the living members of `directory`, this process excepted; with `name`, only those started under it."""
    import psutil

    wanted = str(directory.resolve())
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            variables = process.environ()
        except (psutil.Error, OSError):
            continue
        if variables.get(VARIABLE) == wanted and name in (None, variables.get(NAME_VARIABLE)):
            found.append(process.pid)
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signals processes; quiet about those that are gone."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_members(directory: Path) -> None:
    """Ends all members: SIGTERM, then SIGKILL until none is left."""
    pids = members(directory)
    send(pids, signal.SIGTERM)
    deadline = time.monotonic() + TERMINATE_S
    while pids:
        time.sleep(POLL_S)
        pids = members(directory)
        if time.monotonic() >= deadline:
            send(pids, signal.SIGKILL)
        if time.monotonic() >= deadline + TERMINATE_S:
            raise UnavailableError(f"{directory}: expected its leftover processes to end, got {pids} alive; end them by hand")


class OrphanCleanup:
    """Held for the length of a `with`. Entering ends what an earlier holder left; leaving ends the rest, if no other holds it.

    An exclusive one has one holder; entering it beside another raises UnavailableError.
    """

    def __init__(self, directory: Path, *, is_exclusive: bool) -> None:
        self.directory = directory.resolve()
        self._is_exclusive = is_exclusive
        self._lock = -1
        self._cleaner: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "OrphanCleanup":
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = open_lock(self.directory)
        try:
            self._acquire()
            self._cleaner = start_cleaner(self.directory)
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def _acquire(self) -> None:
        while not self.is_alone():
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace")
            if holder == CLEANER:
                time.sleep(POLL_S)
                continue
            if self._is_exclusive:
                what = f"expected to be free, got in use by another gagar (pid {holder or 'unknown'})"
                raise UnavailableError(f"{self.directory}: {what}; stop that one, or take another run.name")
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            return
        sign(self._lock)
        end_members(self.directory)
        if not self._is_exclusive:
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    def is_alone(self) -> bool:
        """Whether no other holder lives."""
        return try_lock(self._lock)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Lets go; the cleaner then ends the members that are left, if no other holder lives."""
        os.close(self._lock)
        assert self._cleaner is not None
        assert self._cleaner.stdin is not None
        self._cleaner.stdin.close()
        self._cleaner.wait()


def open_lock(directory: Path) -> int:
    """A descriptor of the lock file, which is held shared or exclusively: `filelock` has no shared lock on a plain file."""
    return os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def try_lock(lock: int) -> bool:
    """Takes the lock for itself alone, if nobody else has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def start_cleaner(directory: Path) -> subprocess.Popen[bytes]:
    """The process that outlives its holder: in a session of its own, so that no signal of a terminal reaches it.

    Returns when it has its lock file open: from then on it does its work even if the directory is moved away.
    """
    command = [sys.executable, "-P", "-m", "gagar.processes.orphan_cleanup", str(directory)]
    cleaner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert cleaner.stdout is not None
    with cleaner.stdout as ready:
        ready.read()
    return cleaner


def clean(directory: Path) -> None:
    """Waits for the end of the holder, then ends what it leaves, unless another holder lives."""
    lock = open_lock(directory)
    os.close(1)
    while os.read(0, 1):
        pass
    # The system lets go of a dead process's locks a moment after its pipes.
    deadline = time.monotonic() + RELEASE_S
    while not try_lock(lock):
        if time.monotonic() >= deadline:
            return
        time.sleep(POLL_S)
    sign(lock, CLEANER)
    end_members(directory)


if __name__ == "__main__":
    clean(Path(sys.argv[1]))
