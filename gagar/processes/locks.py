"""A lock between processes on one machine: held by an open file, gone with its holder however that ends."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gagar.errors import UnavailableError

POLL_S = 0.05


@contextmanager
def file_lock(path: Path, *, timeout_s: float, advice: str) -> Iterator[None]:
    """Holds the lock file at `path`; raises UnavailableError with `advice` if another process keeps it for `timeout_s`.

    The file stays: removing it would let two processes lock two files of one name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(descriptor, path, timeout_s, advice)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, timeout_s: float, advice: str) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() >= deadline:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise UnavailableError(f"{path}: expected to be free within {timeout_s:g} s, got held by pid {holder}; {advice}")
        time.sleep(POLL_S)
