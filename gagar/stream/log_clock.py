"""The log's time, as one host can tell it: what deadlines go by, whatever the hosts' own clocks say.

In: broker times of records, as they are read and as they are written. Out: the log's time now. A record that is here was
written before, so the log's time is at least its own, and goes on as the host's monotonic clock does: the largest such bound
of all records is right up to the quickest delivery. Not promised: a right time before the first record that is fresh (until
then it is too early by that record's age), nor with brokers whose clocks differ.
"""

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

MAX_SKEW_S = 5.0
"""A host's clock that is off by more is told of: its log lines and file times do not fit those of other hosts."""


class LogClock:
    """See the module; one for each connection to a log. Times in Unix seconds, unless said otherwise."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._lead_s: float | None = None
        """The log's time less the monotonic clock; none before the first record."""
        self._is_told = False

    def note_read(self, at: float) -> float:
        """A record of that broker time was read. The same moment by the host's monotonic clock, in its seconds."""
        now = self._monotonic()
        if self._lead_s is None or at - now > self._lead_s:
            self._lead_s = at - now
        return at - self._lead_s

    def note_written(self, at: float) -> None:
        """The log has just answered that it wrote a record at that broker time; warns once of a host whose clock is off."""
        self.note_read(at)
        skew_s = self._wall() - self.now()
        if abs(skew_s) > MAX_SKEW_S and not self._is_told:
            self._is_told = True
            log.warning(
                "clock of this host: expected the brokers' time within %.0f s, got %.0f s %s; deadlines go by the brokers' "
                "clock, times of log lines do not: set this host's by NTP",
                MAX_SKEW_S,
                abs(skew_s),
                "ahead" if skew_s > 0 else "behind",
            )

    def now(self) -> float:
        """The log's time; 0 before the first record: the host's own instead would count for ever where time never goes back."""
        return 0.0 if self._lead_s is None else self._monotonic() + self._lead_s
