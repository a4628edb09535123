"""What a run keeps on disk: whether its directory is the one it began with, and whether this machine still takes data."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from gagar.errors import MachineError, UnavailableError

LACKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Of an OSError that no restart mends."""
PROBE_BYTES = 1 << 20


def lack_of(error: BaseException | None, where: Path | None = None, *, trusts_text: bool = True) -> str:
    """What an error, or one that it came from, says the machine lacks; empty if that is nothing.

    Libraries that are not written in Python raise errors of their own, which only quote the system's words, so the text
    of an error counts too. Without `trusts_text` only the system's error number does: unknown code may have written the text.
    """
    while error is not None:
        number, name = (error.errno, error.filename) if isinstance(error, OSError) else (None, None)
        for lack in LACKS:
            words = os.strerror(lack)
            if number == lack or (trusts_text and words in str(error)):
                return f"{where or name or 'disk'}: expected to take data, got {words[:1].lower()}{words[1:]}"
        error = error.__cause__ or error.__context__
    return ""


class Storage:
    """A directory, remembered as it was when this was made."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._identity = _identity(directory)

    def check(self) -> None:
        """Raises UnavailableError if the directory was moved away, deleted or replaced since."""
        found = _identity(self._directory)
        if found != self._identity:
            got = "none" if found is None else "another one"
            raise UnavailableError(
                f"{self._directory}: expected the directory that this run began with, got {got} (moved or deleted); "
                "put it back and start the run again"
            )

    def check_room(self) -> None:
        """The same, and raises MachineError if nothing can be written there."""
        self.check()
        probe = self._directory / ".probe"
        try:
            with probe.open("wb") as file:
                file.write(bytes(PROBE_BYTES))
                os.fsync(file.fileno())
        except OSError as error:
            lack = lack_of(error, self._directory)
            if lack:
                raise MachineError(f"{lack}; make room and start the run again") from error
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)


def _identity(directory: Path) -> tuple[int, int] | None:
    """Device and inode; none if there is no such directory."""
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
