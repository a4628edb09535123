"""What becomes of attempts by how long they are: who waits or drops loses long ones first, and then trains on short ones.

In: attempts whose group has ended, with the time that their own work took. Out: rates by tenths of them, shortest first, and
whether the longest are lost more often than the others. Kept: a temporary SQLite database, which nobody else can open.
Not promised: the length of an attempt that was cut short; it counts with what it had done by then.
"""

import math
import sqlite3
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import msgspec

NUM_TENTHS = 10
MIN_DEVIATIONS = 3.0
"""Of a difference of rates, to be told: by chance alone it is seen in one of a thousand audits."""
QUERY = f"""
SELECT MAX(own_s), COUNT(*), SUM(is_invalid), SUM(is_dropped)
FROM (SELECT *, NTILE({NUM_TENTHS}) OVER (ORDER BY own_s, rowid) AS tenth FROM attempts)
GROUP BY tenth ORDER BY tenth
"""


class Tenth(msgspec.Struct, frozen=True, kw_only=True):
    """A tenth of the attempts, those next to each other in length."""

    up_to_s: float
    """Own work of the longest among them."""
    num_attempts: int
    num_invalid: int
    """The infrastructure failed them, or they had to wait for too long."""
    num_dropped: int
    """Valid ones that came too late for their group, or whose group was dropped for another reason than that all members
    passed, or all failed."""

    @property
    def num_lost(self) -> int:
        """What came to nothing, by no doing of the agent."""
        return self.num_invalid + self.num_dropped


class Bias(msgspec.Struct, frozen=True, kw_only=True):
    """The longest attempts are lost more often than the others."""

    longest: float
    """Share of the longest tenth that was lost."""
    others: float


class Lengths:
    """The attempts of one audit. A context manager: the database goes with it."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE attempts (own_s REAL, is_invalid INTEGER, is_dropped INTEGER)")
        self._database.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._database.close()

    def add(self, attempts: Iterable[tuple[float, bool, bool]]) -> None:
        """Of each attempt the seconds of its own work, whether it is invalid, and whether its group was dropped."""
        self._database.executemany("INSERT INTO attempts VALUES (?, ?, ?)", attempts)

    def tenths(self) -> list[Tenth]:
        """Shortest first; fewer of them if there are fewer attempts."""
        rows = self._database.execute(QUERY).fetchall()
        return [
            Tenth(up_to_s=up_to_s, num_attempts=count, num_invalid=num_invalid, num_dropped=num_dropped)
            for up_to_s, count, num_invalid, num_dropped in rows
        ]


def bias_of(tenths: Sequence[Tenth]) -> Bias | None:
    """Compares the longest tenth with all others, by the difference of two shares."""
    if len(tenths) < NUM_TENTHS:
        return None
    *others, longest = tenths
    num_others, lost_others = sum(tenth.num_attempts for tenth in others), sum(tenth.num_lost for tenth in others)
    together = (longest.num_lost + lost_others) / (longest.num_attempts + num_others)
    deviation = math.sqrt(together * (1 - together) * (1 / longest.num_attempts + 1 / num_others))
    bias = Bias(longest=longest.num_lost / longest.num_attempts, others=lost_others / num_others)
    return bias if bias.longest - bias.others > MIN_DEVIATIONS * deviation else None
