"""What a stage answers when it is replayed, in a file of JSON lines: one for each input, or for each group of a reducer.

Written in the order in which the inputs lie, so the last whole line tells where a replay that was interrupted goes on.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from gagar.errors import GagarError
from gagar.records import LogRef, Record
from gagar.stream.handlers import Linked, Output, Tombstone

FILE = "records.jsonl"


class StageAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the file."""

    input: LogRef
    """The record that was answered; of a group, the last one."""
    key: str
    """Of that record: its group."""
    outputs: list[Record] = []
    error: str = ""
    """Why the input would be a dead letter; empty if it would not."""
    is_partial: bool = False
    """Retention has taken other inputs of the same group, so this says nothing."""


_decoder = msgspec.json.Decoder(StageAnswer)


class AnswerFile:
    """The file of one replay, open at its end."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / FILE).open("r+b")
        self.num_answers = 0
        """Lines that are there."""
        self.last: StageAnswer | None = None
        self._find_end()

    def append(self, answer: StageAnswer) -> None:
        """It is with the operating system when this returns."""
        self._file.write(msgspec.json.encode(answer) + b"\n")
        self._file.flush()
        self.num_answers += 1

    def close(self) -> None:
        self._file.close()

    def _find_end(self) -> None:
        """What was cut in the middle of a line goes."""
        end, last = 0, b""
        for line in self._file:
            if line.endswith(b"\n"):
                end, last = end + len(line), line
                self.num_answers += 1
        self.last = _decoder.decode(last) if last else None
        self._file.truncate(end)
        self._file.seek(end)


def read_answers(directory: Path) -> Iterator[StageAnswer]:
    """All of them, in their order."""
    with (directory / FILE).open("rb") as file:
        for line in file:
            yield _decoder.decode(line)


def plain(outputs: Sequence[Output]) -> list[Record]:
    """Outputs that depend on no place in a log. Raises GagarError for others: a stage that writes them cannot be replayed."""
    records: list[Record] = []
    for output in outputs:
        if isinstance(output, Linked | Tombstone):
            raise GagarError(f"replay: expected records as outputs, got {type(output).__name__}")
        records.append(output)
    return records
