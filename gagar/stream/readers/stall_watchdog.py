"""The watchdog of a reader that died without a word: it is behind, or does not know, and nothing comes."""

from collections.abc import Iterable

from gagar.errors import UnavailableError
from gagar.stream.transport import Partition, Reader


class Silence:
    """How long a reader has been waited for in vain."""

    def __init__(self, reader: str, limit_s: float) -> None:
        self._reader = reader
        self._limit_s = limit_s
        self._silent_s = 0.0

    def note(self, waited_s: float, *, is_behind: bool, num_records: int) -> None:
        """After each poll; raises UnavailableError when the reader should be opened anew."""
        self._silent_s = self._silent_s + waited_s if is_behind and not num_records else 0.0
        if self._silent_s > self._limit_s:
            self._silent_s = 0.0
            raise UnavailableError(f"{self._reader}: expected an answer within {self._limit_s:g} s, got none")


def behind(reader: Reader, partitions: Iterable[Partition]) -> list[Partition]:
    """Partitions that the reader has not read up to their ends, as far as it knows."""
    return [at for at in partitions if not reader.is_caught_up(at)]
