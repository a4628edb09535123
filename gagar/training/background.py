"""An event loop in a thread of its own, for a process whose main thread computes.

In: coroutines, from any other thread. Out: their answers, within a time limit. Not promised: order between two of them.
"""

import asyncio
import math
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from gagar.errors import UnavailableError

T = TypeVar("T")
LOOK_S = 0.2
"""A call that waits looks so often whether it has to end earlier than it was meant to."""


class Background:
    """The thread and its loop; started on construction, a daemon."""

    def __init__(self, name: str) -> None:
        self._ends_at = math.inf
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Starts `work`; the future may be waited for in any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T], *, timeout_s: float, what: str) -> T:
        """The answer of `work`; raises what it raises, or UnavailableError naming `what` when `timeout_s` have passed, or the
        seconds of `end_by`."""
        future, timeout_at = self.submit(work), time.monotonic() + timeout_s
        while not future.done() and (left_s := min(timeout_at, self._ends_at) - time.monotonic()) > 0:
            wait([future], min(LOOK_S, left_s))
        if future.done():
            return future.result()
        future.cancel()
        limit = "before the stop" if self._ends_at < timeout_at else f"within {timeout_s:g} s"
        raise UnavailableError(f"{what}: expected an answer {limit}, got none")

    def end_by(self, seconds: float) -> None:
        """Every call has its answer within so many seconds from now, or fails; also one that waits already."""
        self._ends_at = time.monotonic() + seconds

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancels what still runs and ends the thread; gives up after `timeout_s`, since the thread is a daemon."""
        if self._thread.is_alive():
            try:
                self.submit(self._cancel_all()).result(timeout_s)
            except TimeoutError:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._loop.close()

    async def _cancel_all(self) -> None:
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
