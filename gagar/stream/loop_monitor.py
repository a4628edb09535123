"""Reports a handler that blocks the event loop: heartbeats and every other handler stand still meanwhile.

A thread looks at a timestamp that the loop renews; when it is old, it names the task that runs (the record is in its name) and
the line where it is. Cost: twenty wake-ups a second.
"""

import asyncio
import logging
import threading
import time

from gagar.health.reporter import running_at
from gagar.stream.limits import Counters

log = logging.getLogger(__name__)

BLOCKED_S = 0.1
TICK_S = 0.05


class LoopMonitor:
    """Watches the loop that `start` is called in."""

    def __init__(self, stage: str, counters: Counters, blocked_s: float = BLOCKED_S) -> None:
        self._counters = counters
        self._stage = stage
        self._blocked_s = blocked_s
        self._beat = time.monotonic()
        self._stop = threading.Event()
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to watch."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._renew()
        threading.Thread(target=self._watch, name="loop-monitor", daemon=True).start()

    def stop(self) -> None:
        """Ends the watch."""
        self._stop.set()
        if self._handle is not None:
            self._handle.cancel()

    def _renew(self) -> None:
        self._beat = time.monotonic()
        self._handle = self._loop.call_later(TICK_S / 2, self._renew)

    def _watch(self) -> None:
        reported = 0.0
        while True:
            slept_from = time.monotonic()
            if self._stop.wait(TICK_S):
                return
            now, beat = time.monotonic(), self._beat
            was_stopped_as_well = now - slept_from > 4 * TICK_S
            if now - beat > self._blocked_s + TICK_S and beat != reported and not was_stopped_as_well:
                reported = beat
                self._counters.blocked += 1
                task, where = running_at(self._loop, self._thread_id)
                log.warning("event loop blocked stage=%s for_s=%.2f task=%s at=%s", self._stage, now - beat, task, where)
