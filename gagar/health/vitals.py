"""What a process of a stage tells of itself, and the file that holds it.

All times are by the machine's monotonic clock, which every process on it shares: a time-out of another process can be judged.
"""

from typing import Literal

import msgspec

Phase = Literal["starting", "working", "stopping"]


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """A stage at one moment, as its own event loop tells it."""

    at: float
    """When the loop told it: a loop that is blocked tells nothing new."""
    phase: Phase
    is_member: bool = False
    """Whether the log's coordinator counts this process as one of the stage, as far as is known here."""
    num_partitions: int = 0
    """Partition numbers that it owns."""
    num_waiting: int = 0
    """Those of them that it cannot read yet, or no longer."""
    silent_s: float = 0.0
    """Seconds of asking without an answer from the log, though there is more to read or that is not known."""
    polled_at: float | None = None
    """When it last asked the log for records."""
    active_at: float | None = None
    """The oldest sign of what has to go on all the time: the last poll of a reader that nothing holds back, the start of the
    learner's round. None: nothing has to."""
    patience_s: float = 0.0
    """When `active_at` is older than this, it does not go on any more."""
    lag: int | None = None
    """Records up to the known ends of its partitions that are not finished; none: not known."""
    num_in_work: int = 0
    """Records that are delivered and not finished."""
    is_breaker_open: bool = False
    """Whether intake pauses since something outside is down."""


class HealthFile(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in the file of a process."""

    run: str
    stage: str
    pid: int
    identity: str
    """Of the process, see `gagar.processes.identity`; a recycled pid has another one."""
    started_at: float
    written_at: float
    """By a thread of its own, so also while the loop is blocked."""
    vitals: Vitals | None = None
    """None: the event loop does not run yet."""
    busy_with: str = ""
    """The task and the line that hold the loop, while it is blocked."""
