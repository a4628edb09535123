"""Tells in a file how this process is: a small one per process, in a directory that all processes of a user on a machine share.

In: a function that tells the vitals, called on the event loop every two seconds. Out: the file, replaced as a whole by a thread
of its own, so that no disk holds the loop up and a blocked loop is still told of. The file goes when the process ends in good
order; those of processes that did not are removed by the next one. Not promised: that a disk takes the file; a process works
without.
"""

import asyncio
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gagar.health.vitals import HealthFile, Vitals
from gagar.processes.identity import identity, is_alive

log = logging.getLogger(__name__)

EVERY_S = 2.0
BLOCKED_S = 20.0
"""A loop that told nothing for so long is blocked."""


def health_directory() -> Path:
    """Where this user's processes on this machine write; in a container its own tmpfs. Nobody else may read or write there."""
    return Path(tempfile.gettempdir()) / f"gagar-health-{os.getuid()}"


def running_at(loop: asyncio.AbstractEventLoop, thread_id: int) -> tuple[str, str]:
    """Name of the task that a loop runs now, and the line where its thread is. Called from another thread."""
    task = asyncio.current_task(loop)
    frame = sys._current_frames().get(thread_id)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown"
    return (task.get_name() if task is not None else "none"), where


def read_files(directory: Path) -> list[HealthFile]:
    """Of the processes that live, in the order of run, stage and pid."""
    found = []
    for path in directory.glob("*.json"):
        with suppress(OSError, msgspec.DecodeError):  # one that has just been removed
            file = msgspec.json.decode(path.read_bytes(), type=HealthFile)
            if is_alive(file.pid, file.identity):
                found.append(file)
    return sorted(found, key=lambda file: (file.run, file.stage, file.pid))


class HealthReporter:
    """See the module. The thread begins with `start` and ends with `close`."""

    def __init__(self, run: str, stage: str, directory: Path | None = None, every_s: float = EVERY_S) -> None:
        now, pid = time.monotonic(), os.getpid()
        self._file = HealthFile(run=run, stage=stage, pid=pid, identity=identity(pid) or "", started_at=now, written_at=now)
        self._directory = directory or health_directory()
        self._path = self._directory / f"{run}.{stage}.{pid}.json"
        self._every_s = every_s
        self._vitals: Vitals | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="health", daemon=True)

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def follow(self, vitals: Callable[[], Vitals]) -> None:
        """Called on the event loop whose life is told: asks for the vitals now, and again and again while the loop runs."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._ask(vitals)

    def close(self) -> None:
        """Nothing is told any more, and what was is removed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(self._every_s)
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _ask(self, vitals: Callable[[], Vitals]) -> None:
        assert self._loop is not None
        self._vitals = vitals()
        if not self._ended.is_set():
            self._loop.call_later(self._every_s, self._ask, vitals)

    def _write_on(self) -> None:
        is_told = False
        with suppress(OSError):
            self._prepare()
        while True:
            try:
                self._write()
            except OSError as error:
                if not is_told:
                    log.warning("health not told path=%s error=%s", self._path, error)
                is_told = True
            if self._ended.wait(self._every_s):
                return

    def _prepare(self) -> None:
        """Leaves no file of a process that was killed."""
        for path in self._directory.glob("*.json"):
            with suppress(msgspec.DecodeError, OSError):
                file = msgspec.json.decode(path.read_bytes(), type=HealthFile)
                if not is_alive(file.pid, file.identity):
                    path.unlink(missing_ok=True)

    def _write(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if self._directory.stat().st_uid != os.getuid():
            raise PermissionError(f"{self._directory}: expected a directory of this user, got another's")
        now, vitals = time.monotonic(), self._vitals
        busy = self._busy_with() if vitals is not None and now - vitals.at > BLOCKED_S else ""
        file = msgspec.structs.replace(self._file, written_at=now, vitals=vitals, busy_with=busy)
        part = self._path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(file))
        part.replace(self._path)

    def _busy_with(self) -> str:
        if self._loop is None:
            return ""
        task, where = running_at(self._loop, self._loop_thread)
        return f"task={task} at={where}"


@contextmanager
def reporting(run: str, stage: str, directory: Path | None = None) -> Iterator[HealthReporter]:
    """A reporter for the length of a `with`."""
    reporter = HealthReporter(run, stage, directory)
    reporter.start()
    try:
        yield reporter
    finally:
        reporter.close()
