"""A lock between processes on one machine: held by an open file, gone with its holder however that ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from gagar.errors import UnavailableError
from gagar.processes.identity import sign


@contextmanager
def file_lock(path: Path, *, timeout_s: float, advice: str) -> Iterator[None]:
    """Holds the lock file at `path`; raises UnavailableError with `advice` if another process keeps it for `timeout_s`.

    The file holds the pid of the last holder. It stays: removing it would let two processes lock two files of one name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=timeout_s, preserve_lock_file=True, on_acquired=sign)
    try:
        lock.acquire()
    except Timeout:
        holder = path.read_text(encoding="ascii", errors="replace").strip() or "unknown"
        what = f"expected to be free within {timeout_s:g} s, got held by pid {holder}"
        raise UnavailableError(f"{path}: {what}; {advice}") from None
    try:
        yield
    finally:
        lock.release()
