"""Follows log files while processes append to them: the processes write to the files themselves and never wait for a reader."""

from pathlib import Path

MAX_READ_BYTES = 1 << 20


class LogTail:
    """The lines that are new in a file since the last look; a line without an end waits for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Lines completed since the last call, at most `MAX_READ_BYTES` of them; undecodable bytes are replaced."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                data = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return []
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def rest(self) -> list[str]:
        """What is left at the end: all further lines, one without an end included."""
        lines = []
        while found := self.new_lines():
            lines += found
        if self._rest:
            lines.append(self._rest.decode("utf-8", "replace"))
            self._rest = b""
        return lines
