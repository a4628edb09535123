"""Tasks in a JSON Lines file, one task a line.

In: the file. Out: a TaskSet. Kept: where each line lies. A broken line is a ConfigError that names file and line, before any
stage starts.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from gagar.errors import ConfigError, UnavailableError
from gagar.tasks.source import TaskSource
from gagar.tasks.task import Task, check_task


class Jsonl(TaskSource, frozen=True, kw_only=True, tag="jsonl"):
    """Tasks in a JSON Lines file."""

    path: str
    """Of the file; relative to the run file, or `gagar:...` in the installed package."""

    def make(self, resolve: Callable[[str], Path]) -> "JsonlTasks":
        return JsonlTasks(resolve(self.path))


class JsonlTasks:
    """The TaskSet over a JSON Lines file. The constructor reads the file once and raises ConfigError on a missing file, a
    broken line or a doubled task_id."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(Task)
        self._lines: dict[str, tuple[int, int]] = {}
        """Offset and length of each task's line, by task_id."""
        offset = 0
        try:
            with path.open("rb") as file:
                self._state = _state(file)
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        self._add(number, line, offset)
                    offset += len(line)
        except OSError as error:
            raise ConfigError(f"task file {path}: expected a readable JSON Lines file, got {error.strerror}") from error
        if not self._lines:
            raise ConfigError(f"task file {path}: expected at least one task, got none")

    def _add(self, number: int, line: bytes, offset: int) -> None:
        where = f"{self._path}:{number}"
        try:
            task = self._decoder.decode(line)
            check_task(task)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: expected a task as JSON, got {error}; mend or remove the line") from error
        except ValueError as error:
            raise ConfigError(f"{where}: {error}; mend or remove the line") from error
        if task.task_id in self._lines:
            raise ConfigError(f"{where}: expected a new task_id, got {task.task_id!r} again; rename or remove it")
        self._lines[task.task_id] = (offset, len(line))

    @property
    def ids(self) -> Sequence[str]:
        return list(self._lines)

    def all(self) -> list[Task]:
        """Every task, in order; for small sets."""
        return [task for task in map(self.find, self._lines) if task is not None]

    def find(self, task_id: str) -> Task | None:
        """The task of that id, read anew. Raises UnavailableError if the file cannot be read, or is not what it was: a stage
        then waits, and no record is lost on account of it."""
        if task_id not in self._lines:
            return None
        offset, length = self._lines[task_id]
        try:
            with self._path.open("rb") as file:
                if _state(file) != self._state:
                    raise UnavailableError(f"task file {self._path}: expected it as it was at the start, got another")
                file.seek(offset)
                return self._decoder.decode(file.read(length))
        except OSError as error:
            raise UnavailableError(f"task file {self._path}: expected to read it, got {error.strerror}") from error


def _state(file: IO[bytes]) -> tuple[int, int, int]:
    """What changes when a file is replaced or written to: inode, size, time of the last change."""
    state = os.fstat(file.fileno())
    return state.st_ino, state.st_size, state.st_mtime_ns
