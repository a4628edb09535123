"""A delivery's way through a handler: tried until it has outputs or is dead.

In: a raw record and a handler. Out: a unit. A bad record is dead at once, an outage is waited out, a bug has two more tries.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gagar.errors import BadRecordError, UnavailableError
from gagar.stream.guard import HandlerBugError, guarded
from gagar.stream.handlers import Delivery, Output
from gagar.stream.lanes.breaker import Breaker
from gagar.stream.lanes.units import Spot, Unit
from gagar.stream.limits import Counters, RuntimeLimits
from gagar.stream.routing import Router
from gagar.stream.transport import RawRecord

log = logging.getLogger(__name__)

DECODE_INLINE_BYTES = 1 << 20
"""Above this a record is decoded in a thread: it would hold the event loop for more than a few milliseconds."""

Handle = Callable[[Delivery[Any]], Awaitable[Sequence[Output]]]


class Retry:
    """Runs a handler on a delivery until it has outputs or is dead; all deliveries of a stage share it, and its breaker."""

    def __init__(self, stage: str, router: Router, limits: RuntimeLimits, counters: Counters) -> None:
        self.breaker = Breaker(stage, limits, counters)
        self._stage = stage
        self._router = router
        self._limits = limits
        self._counters = counters

    async def decode(self, raw: RawRecord) -> Delivery[Any]:
        """The delivery in `raw`; raises BadRecordError."""
        if raw.value is not None and len(raw.value) > DECODE_INLINE_BYTES:
            return await asyncio.to_thread(self._router.delivery, raw)
        return self._router.delivery(raw)

    async def run(self, raw: RawRecord, handle: Handle) -> Unit:
        """The finished unit of one delivery; never raises but when cancelled."""
        try:
            return await self._insist(raw, await self.decode(raw), handle)
        except (BadRecordError, HandlerBugError) as error:
            return self.dead(raw, error)

    def dead(self, raw: RawRecord, error: Exception) -> Unit:
        """A unit that moves `raw` to the dead letters."""
        reason = str(error).strip().splitlines()[-1] if str(error) else type(error).__name__
        log.warning("record dead-lettered stage=%s record=%s error=%s", self._stage, raw.ref, reason)
        return self._router.dead_unit(raw, str(error))

    async def _insist(self, raw: RawRecord, delivery: Delivery[Any], handle: Handle) -> Unit:
        num_outages = num_bugs = 0
        while True:
            is_probe = await self.breaker.wait_turn(num_outages + num_bugs)
            try:
                with guarded():
                    outputs = self._router.encode_all(await handle(delivery))
                self.breaker.succeeded()
                return Unit(inputs=(Spot(raw.at, raw.offset),), outputs=outputs, source=raw)
            except UnavailableError as error:
                num_outages += 1
                self.breaker.failed(str(raw.ref), error)
            except HandlerBugError:
                self.breaker.succeeded()
                num_bugs += 1
                if num_bugs > self._limits.bug_retries:
                    raise
                self._counters.retries += 1
            except BadRecordError:
                self.breaker.succeeded()
                raise
            finally:
                if is_probe:
                    self.breaker.release()
