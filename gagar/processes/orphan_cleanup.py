"""A leash: what is started on it ends with its holder, even if the holder is killed.

In: a directory that stands for the holder. Every process started with `environment(directory)` is on the leash, and so is all
that it starts, whatever sessions and groups those make for themselves: membership is read from the environment of the living.
A small process of its own (`python -m gagar.processes.orphan_cleanup`) waits on a pipe whose end only the holder has; when
the holder is gone, however it went, it ends what is on the leash. The next holder of the directory looks for leftovers again.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from gagar.errors import UnavailableError

VARIABLE = "GAGAR_LEASH"
NAME_VARIABLE = "GAGAR_LEASH_NAME"
LOCK_FILE = "leash.lock"
REAPER = "reaper"
"""In the lock file while a reaper is at work, which a new holder waits for; else the pid of a holder."""
PATIENCE_S = 10.0
"""From SIGTERM to SIGKILL for what its holder left behind."""
RELEASE_S = 2.0
POLL_S = 0.05


def environment(directory: Path, name: str = "") -> dict[str, str]:
    """What puts a process on the leash of `directory`; `name` tells it from others there."""
    return {VARIABLE: str(directory.resolve()), NAME_VARIABLE: name}


def members(directory: Path, name: str | None = None) -> list[int]:
    """Pids of living processes on the leash of `directory`, this one excepted; with `name`, only those started under it."""
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
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def end_members(directory: Path, patience_s: float = PATIENCE_S) -> int:
    """Ends all on the leash: SIGTERM, then SIGKILL until none is left; how many there were."""
    pids = members(directory)
    num = len(pids)
    send(pids, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while pids:
        time.sleep(POLL_S)
        pids = members(directory)
        if time.monotonic() >= deadline:
            send(pids, signal.SIGKILL)
        if time.monotonic() >= deadline + patience_s:
            raise UnavailableError(f"{directory}: expected its leftover processes to end, got {pids} alive; end them by hand")
    return num


class Leash:
    """Held for the length of a `with`. Entering ends what an earlier holder left; leaving ends the rest, if no other holds it.

    An exclusive leash has one holder; entering it beside another raises UnavailableError.
    """

    def __init__(self, directory: Path, *, is_exclusive: bool) -> None:
        self.directory = directory.resolve()
        self._is_exclusive = is_exclusive
        self._lock = -1
        self._reaper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Leash":
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._acquire()
            self._reaper = start_reaper(self.directory)
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def _acquire(self) -> None:
        while not self.is_alone():
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace")
            if holder == REAPER:
                time.sleep(POLL_S)
                continue
            if self._is_exclusive:
                what = f"expected to be free, got in use by another gagar (pid {holder or 'unknown'})"
                raise UnavailableError(f"{self.directory}: {what}; stop that one, or take another run.name")
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            return
        sign(self._lock, str(os.getpid()))
        end_members(self.directory)
        if not self._is_exclusive:
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    def is_alone(self) -> bool:
        """Whether no other holder lives."""
        return try_lock(self._lock)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Lets go; the reaper then ends what is still on the leash, if no other holder lives."""
        os.close(self._lock)
        assert self._reaper is not None
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        self._reaper.wait()


def try_lock(lock: int) -> bool:
    """Takes the lock for itself alone, if nobody else has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sign(lock: int, text: str) -> None:
    """Writes into the lock file who holds it."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, text.encode("ascii"), 0)


def start_reaper(directory: Path) -> subprocess.Popen[bytes]:
    """The process that outlives its holder: in a session of its own, so that no signal of a terminal reaches it."""
    command = [sys.executable, "-P", "-m", "gagar.processes.orphan_cleanup", str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def reap(directory: Path) -> None:
    """Waits for the end of the holder, then ends what it leaves, unless another holder lives."""
    while os.read(0, 1):
        pass
    lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    # The system lets go of a dead process's locks a moment after its pipes.
    deadline = time.monotonic() + RELEASE_S
    while not try_lock(lock):
        if time.monotonic() >= deadline:
            return
        time.sleep(POLL_S)
    sign(lock, REAPER)
    end_members(directory)


if __name__ == "__main__":
    reap(Path(sys.argv[1]))
