"""The breaker of a stage: while something outside is down, intake pauses and nothing is failed on its account.

Each delivery is retried in place with growing, jittered waits. After a number of outages in a row the breaker opens: no new
delivery begins, and of those that wait one at a time probes; the first that meets no outage closes it.
"""

import asyncio
import logging

from gagar.stream.limits import Counters, RuntimeLimits

log = logging.getLogger(__name__)


class Breaker:
    """Shared by all handlers of a stage."""

    def __init__(self, stage: str, limits: RuntimeLimits, counters: Counters) -> None:
        self._stage = stage
        self._limits = limits
        self._counters = counters
        self._failures = 0
        self._closed = asyncio.Event()
        self._closed.set()
        self._turn = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        return not self._closed.is_set()

    async def wait_closed(self) -> None:
        """Until intake may go on."""
        await self._closed.wait()

    async def wait_turn(self, num_failures: int) -> bool:
        """Before a try: waits as long as its failures demand, and for the probe's place while the breaker is open.

        True: the caller holds the probe's place, and `release` must follow.
        """
        if num_failures:
            await asyncio.sleep(self._limits.backoff(num_failures))
        if not self.is_open:
            return False
        await self._turn.acquire()
        if self.is_open:
            return True
        self._turn.release()
        return False

    def release(self) -> None:
        """The probe is over."""
        self._turn.release()

    def failed(self, what: str, error: Exception) -> None:
        """A try met an outage."""
        self._failures += 1
        self._counters.retries += 1
        log.warning("handler unavailable stage=%s record=%s failures=%d error=%s", self._stage, what, self._failures, error)
        if self._failures >= self._limits.breaker_threshold and not self.is_open:
            self._closed.clear()
            self._counters.breaker_open = True
            log.error("breaker opened stage=%s failures=%d error=%s", self._stage, self._failures, error)

    def succeeded(self) -> None:
        """A try met no outage."""
        self._failures = 0
        if self.is_open:
            self._closed.set()
            self._counters.breaker_open = False
            log.warning("breaker closed stage=%s", self._stage)
