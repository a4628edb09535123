"""The bench's child processes, which orphan cleanup of the broker's directory holds: none outlives it; their logs beside it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gagar.processes.orphan_cleanup import environment

ROOT = Path(__file__).parents[2]
STOP_S = 20.0


class Child:
    """One process, and what can be read off it."""

    def __init__(self, name: str, arguments: Sequence[str], directory: Path) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, **environment(directory), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises AssertionError with the end of its log if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise AssertionError(f"{self.name}: expected to be at work, got exit code {code}: {self._log.read_text()[-2000:]}")

    def read_line(self) -> bytes:
        """The next line that it prints; empty at its end."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def write_line(self) -> None:
        """Lets it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def peak_bytes(self) -> int:
        """The most memory that it has held."""
        [line] = [line for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) << 10

    def end(self) -> None:
        """SIGTERM, and SIGKILL after a bounded wait."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def children(directory: Path, commands: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Child]]:
    """Processes by name for the length of a `with`; the arguments are Python's."""
    started: dict[str, Child] = {}
    try:
        for name, arguments in commands.items():
            started[name] = Child(name, arguments, directory)
        yield started
    finally:
        for child in started.values():
            child.end()
