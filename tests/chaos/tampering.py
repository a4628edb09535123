"""What the driver does to a stage from inside: markers in the run's directory that its handlers look at; and what the
handlers tell the driver: a trace of the deliveries that they began and ended and of the partitions that the process owned.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

import msgspec

from gagar.records import LogRef

Marker = Literal["hang", "block"]
HANG_S = 15.0
BLOCK_S = 8.0
"""Longer than the session of a group's member lasts without a heartbeat."""
LINGER_S = 4.0
"""Of each handler of a stage that is being scaled, so that some are in work whenever the group is divided anew."""
OUTAGE, OUTAGE_MET, HELD = "outage", "outage.met", "held"

_is_started: ContextVar[bool] = ContextVar("is_started", default=False)
"""In the task of one delivery: whether its start has been traced; another try is no start."""


class Markers:
    """Files that stand for a fault to come."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def place(self, marker: Marker, stage: str) -> None:
        """The next handler of the stage that looks meets the fault."""
        self._path(marker, stage).touch()

    def take(self, marker: Marker, stage: str) -> bool:
        """Whether the fault is there; it is gone then, so that one handler meets it."""
        try:
            self._path(marker, stage).unlink()
        except FileNotFoundError:
            return False
        return True

    def is_placed(self, marker: Marker, stage: str) -> bool:
        """Whether the fault still waits for a handler."""
        return self._path(marker, stage).exists()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The sandbox is away for the length of a `with`."""
        (self._directory / OUTAGE_MET).unlink(missing_ok=True)
        with self._there(OUTAGE):
            yield

    @property
    def meets_outage(self) -> bool:
        """Whether the sandbox is away; leaves word that a handler has met that."""
        if not (self._directory / OUTAGE).exists():
            return False
        (self._directory / OUTAGE_MET).touch()
        return True

    @property
    def was_outage_met(self) -> bool:
        """Whether a handler has met the last outage."""
        return (self._directory / OUTAGE_MET).exists()

    @contextmanager
    def lingering(self, stage: str) -> Iterator[None]:
        """Each handler of the stage takes longer, for the length of a `with`."""
        with self._there(f"linger.{stage}"):
            yield

    def is_lingering(self, stage: str) -> bool:
        return (self._directory / f"linger.{stage}").exists()

    def hold(self) -> None:
        """The sampler keeps the last groups back, until `release`."""
        (self._directory / HELD).touch()

    def release(self) -> None:
        (self._directory / HELD).unlink(missing_ok=True)

    @property
    def is_held(self) -> bool:
        return (self._directory / HELD).exists()

    @contextmanager
    def _there(self, name: str) -> Iterator[None]:
        path = self._directory / name
        path.touch()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _path(self, marker: Marker, stage: str) -> Path:
        return self._directory / f"{marker}.{stage}"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A line of a trace."""

    at: float
    kind: Literal["start", "done", "end", "own"]
    numbers: list[int]
    """start, done (it has answered), end (it has failed or was given up): partition and offset of the delivery. own: the
    partition numbers that the process owns from now on."""


class Trace:
    """What one process did, appended line by line, each in one write: a SIGKILL leaves whole lines."""

    def __init__(self, directory: Path, stage: str) -> None:
        self._file = os.open(path_of(directory, stage, os.getpid()), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def started(self, ref: LogRef) -> None:
        """A handler starts on a delivery, for the first time in this task."""
        if not _is_started.get():
            _is_started.set(True)
            self._write(Entry(time.time(), "start", [ref.partition, ref.offset]))

    def ended(self, ref: LogRef, *, is_done: bool) -> None:
        """A handler has answered, or has failed or been given up."""
        self._write(Entry(time.time(), "done" if is_done else "end", [ref.partition, ref.offset]))

    def owns(self, numbers: frozenset[int]) -> None:
        """The group has been divided anew."""
        self._write(Entry(time.time(), "own", sorted(numbers)))

    def _write(self, entry: Entry) -> None:
        os.write(self._file, msgspec.json.encode(entry) + b"\n")


def path_of(directory: Path, stage: str, pid: int) -> Path:
    return directory / f"{stage}.{pid}.trace"


def read_trace(directory: Path, stage: str, pid: int) -> Iterator[Entry]:
    """The lines that a process has written; none if it wrote none."""
    path = path_of(directory, stage, pid)
    if path.exists():
        decoder = msgspec.json.Decoder(Entry)
        with path.open("rb") as lines:
            yield from (decoder.decode(line) for line in lines if line.endswith(b"\n"))
