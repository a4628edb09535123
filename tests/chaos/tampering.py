"""What the driver does to a stage from inside: markers in the run's directory that its handlers look at; and what the
handlers tell the driver: a trace of the deliveries that they started on and of the partitions that the process owned.
"""

import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

import msgspec

from gagar.records import LogRef

Marker = Literal["hang", "block"]
HANG_S = 15.0
BLOCK_S = 8.0
"""Longer than the session of a group's member lasts without a heartbeat."""
OUTAGE = "outage"

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

    @property
    def is_outage(self) -> bool:
        return (self._directory / OUTAGE).exists()

    def set_outage(self, is_outage: bool) -> None:
        """Takes the sandbox away, or gives it back."""
        path = self._directory / OUTAGE
        path.touch() if is_outage else path.unlink(missing_ok=True)

    def _path(self, marker: Marker, stage: str) -> Path:
        return self._directory / f"{marker}.{stage}"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A line of a trace."""

    at: float
    kind: Literal["start", "own"]
    numbers: list[int]
    """start: partition and offset of the delivery. own: the partition numbers that the process owns from now on."""


class Trace:
    """What one process did, appended line by line, each in one write: a SIGKILL leaves whole lines."""

    def __init__(self, directory: Path, stage: str) -> None:
        self._file = os.open(path_of(directory, stage, os.getpid()), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def started(self, ref: LogRef) -> None:
        """A handler starts on a delivery, for the first time in this task."""
        if not _is_started.get():
            _is_started.set(True)
            self._write(Entry(time.time(), "start", [ref.partition, ref.offset]))

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
