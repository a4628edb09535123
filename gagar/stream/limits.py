"""The numbers by which the runtime behaves, and what it counts."""

import asyncio
import logging
import random

import msgspec
import tenacity

from gagar.config import DRAIN_S, StreamTable
from gagar.errors import GagarError, UnavailableError

log = logging.getLogger(__name__)


class RuntimeLimits(StreamTable, frozen=True, kw_only=True):
    """Bounds and times of a stage's runtime: those of [stream], and others whose defaults serve and which tests shorten."""

    max_units: int = 64
    """Most units in one transaction."""
    commit_gap_s: float = 0.007
    """Seconds between two transactions of a producer; without them the next one meets the end of the last and waits 20 ms."""
    linger_s: float = 0.25
    """Longest wait of a transaction for handlers that are at work on its partition: a transaction of many units costs the log
    little more than one of a single unit."""
    transaction_timeout_s: float = 30.0
    """Seconds after which the outcome of a transaction counts as unknown; the log itself aborts one after twice as many."""
    backoff_s: float = 0.2
    """Seconds before the first retry after a failure; doubled for each further one."""
    max_backoff_s: float = 15.0
    bug_retries: int = 2
    """Retries of a handler that raised neither BadRecordError nor UnavailableError, before the record is a dead letter."""
    breaker_threshold: int = 5
    """Outages in a row that open the breaker."""
    max_dead_run: int = 32
    """Dead letters in a row that stop the stage."""
    dead_share: float = 0.25
    """Share of dead letters among the last `dead_share_of` units that stops the stage."""
    dead_share_of: int = 256
    revoke_s: float = 2.0
    """Seconds for committing what is finished before the consumer group is divided anew."""
    handover_s: float = 0.5
    """Seconds that the new owner of a partition leaves the one before it for its last commit, where the group has others."""
    last_commit_s: float = 1.0
    """Seconds for committing what has finished on a partition that went elsewhere; by then its next owner has fenced it."""
    drain_s: float = DRAIN_S
    """Seconds for handlers to finish at a shutdown; then their work is abandoned."""
    close_s: float = 2.5
    """For connections at a shutdown, and again for the handler's own; with `drain_s` and the transport's end it stays below
    the exit by force."""
    stall_s: float = 45.0
    """A reader that got no answer from the log for so long, though there is more to read, is opened anew."""
    pin_check_s: float = 20.0
    """Seconds between two looks whether the stage's topics are still the ones that it began with."""
    tick_s: float = 0.25
    """Longest wait of a reducer or a source before it looks at the clock again."""

    @property
    def last_timeout_s(self) -> float:
        """Instead of `transaction_timeout_s`, for a transaction that cannot be made smaller: as long as the log allows."""
        return 1.8 * self.transaction_timeout_s

    def backoff(self, num_failures: int) -> float:
        """Jittered wait before the next try."""
        return random.uniform(0.5, 1.0) * min(self.max_backoff_s, self.backoff_s * 2.0 ** min(num_failures - 1, 20))


def retrying(what: str, limits: RuntimeLimits) -> tenacity.AsyncRetrying:
    """Calls `what` again, after growing waits, for as long as the log cannot be reached: `await retrying(...)(function)`."""

    def tell(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        log.warning("%s interrupted failures=%d error=%s", what, state.attempt_number, error)

    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(UnavailableError),
        wait=lambda state: limits.backoff(state.attempt_number),
        before_sleep=tell,
    )


class Counters(msgspec.Struct, kw_only=True):
    """What a stage did since it started."""

    delivered: int = 0
    finished: int = 0
    """Inputs whose units are committed."""
    transactions: int = 0
    dead_letters: int = 0
    late: int = 0
    """Finished without outputs, since their key had closed."""
    retries: int = 0
    abandoned: int = 0
    """Deliveries whose work was thrown away: the partition moved, or the stage stopped first."""
    wasted: int = 0
    """Finished units among those deliveries: no commit took them in time, so they are made again."""
    missing: int = 0
    """Offsets that the log no longer held when they were due: retention has overtaken the stage."""
    blocked: int = 0
    """Times that something held the event loop for more than 100 ms."""
    takeovers: int = 0
    """Producers started: one per partition won, and one per recovery."""
    breaker_open: bool = False

    def line(self) -> str:
        """For the log: `delivered=5 finished=4 ...`."""
        return " ".join(f"{name}={int(getattr(self, name))}" for name in self.__struct_fields__)


async def log_counts(stage: str, counters: Counters, every_s: float = 10.0) -> None:
    """Logs the counters whenever they have changed."""
    last = Counters().line()
    while True:
        await asyncio.sleep(every_s)
        line = counters.line()
        if line != last:
            log.info("stage counts stage=%s %s", stage, line)
            last = line


class DeadLetterLimits:
    """Stops a stage that dead-letters too much: a bad deployment must not drain a topic."""

    def __init__(self, stage: str, limits: RuntimeLimits) -> None:
        self._stage = stage
        self._limits = limits
        self._run = 0
        self._recent: list[bool] = []

    def note(self, is_dead: bool) -> None:
        """Counts a committed unit; raises GagarError at a limit."""
        self._run = self._run + 1 if is_dead else 0
        self._recent.append(is_dead)
        if len(self._recent) > self._limits.dead_share_of:
            del self._recent[0]
        num_dead = sum(self._recent) if is_dead else 0
        is_share = len(self._recent) == self._limits.dead_share_of and num_dead > self._limits.dead_share * len(self._recent)
        if self._run > self._limits.max_dead_run or is_share:
            raise GagarError(
                f"stage {self._stage}: expected at most {self._limits.max_dead_run} dead letters in a row and "
                f"{self._limits.dead_share:.0%} of {self._limits.dead_share_of}, got {self._run} in a row and {num_dead}; "
                "read the errors in dead-letters, mend the stage, start it again"
            )
