"""Follows log files while processes append to them: the processes write to the files themselves and never wait for a reader."""

from pathlib import Path

MAX_READ_BYTES = 1 << 20
LAST_BYTES = 4096
"""How much of a log's end is looked at for its last line."""


class LogTail:
    """The lines that are new in a file since the last look; a line without an end waits for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Lines completed since the last call, `MAX_READ_BYTES` at a time; undecodable bytes are replaced."""
        return self._split(self._read())

    def rest(self) -> list[str]:
        """What is left at the end: all further lines, one without an end included."""
        lines = []
        while data := self._read():
            lines += self._split(data)
        if self._rest:
            lines.append(self._rest.decode("utf-8", "replace"))
            self._rest = b""
        return lines

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                data = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return b""
        self._position += len(data)
        return data

    def _split(self, data: bytes) -> list[str]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]


def last_words(log_file: Path) -> str:
    """The last line of a log that says something; bounded."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, log_file.stat().st_size - LAST_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError as error:
        return f"no log: {error.strerror}"
    return next((line for line in reversed(lines) if line.strip()), "nothing logged")


def fresh_log(path: Path) -> Path:
    """The path, with nothing there; the log of the run before is kept beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_name(f"{path.name}.1"))
    return path
