"""Replays a stage that answers one record at a time: verifier, grader, advantage publisher.

In: the inputs of the plan, partition after partition in log order; where an earlier replay has come to. Out: an answer for each
input that is selected, in that order, though several are in work. Nothing is written to a log, and no consumer group is joined:
what the handler would have made a dead letter is an answer too.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import tenacity

from gagar.errors import BadRecordError, UnavailableError
from gagar.records import LogRef, Record
from gagar.replay.answers import StageAnswer, plain
from gagar.replay.plan import ReplayPlan, scan_of
from gagar.stream.guard import HandlerBugError, guarded
from gagar.stream.handlers import Delivery, Effect
from gagar.stream.readers.scans import scan_transport
from gagar.stream.spec import Topic
from gagar.stream.transport import Transport

log = logging.getLogger(__name__)

MAX_TRIES = 5
"""Of one input, while something outside is down; then the replay ends, and goes on when it is started again."""
MAX_WAIT_S = 15.0

Note = Callable[[int], None]
"""Is told how many offsets of all inputs have been read."""
Deliveries = AsyncGenerator[Delivery[Any], None]


def scan_partition(transport: Transport, topic: Topic, plan: ReplayPlan, number: int, begin: int = 0) -> Deliveries:
    """One partition of an input, from `begin` on."""
    spans = scan_of(plan.inputs, topic, number, begin)
    return scan_transport(transport, [topic], spans=spans)


async def replay_effect(
    transport: Transport, topic: Topic, effect: Effect, plan: ReplayPlan, *, after: LogRef | None, window: int, note: Note
) -> AsyncGenerator[StageAnswer, None]:
    """See the module. `after`: the last input that has its answer; `window`: inputs in work. Raises UnavailableError."""
    pending: deque[asyncio.Task[StageAnswer]] = deque()
    try:
        async with aclosing(_selected(transport, topic, plan, after, note)) as deliveries:
            async for delivery in deliveries:
                pending.append(asyncio.create_task(_answer(effect, delivery)))
                if len(pending) >= window:
                    yield await pending.popleft()
        while pending:
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _selected(transport: Transport, topic: Topic, plan: ReplayPlan, after: LogRef | None, note: Note) -> Deliveries:
    num_before = 0
    for number in range(plan.num_partitions):
        span = plan.span(topic, number)
        is_done = after is not None and number < after.partition
        begin = after.offset + 1 if after is not None and number == after.partition else span.begin
        async with aclosing(scan_partition(transport, topic, plan, number, span.end if is_done else begin)) as deliveries:
            async for delivery in deliveries:
                note(num_before + delivery.ref.offset - span.begin)
                if plan.selection.takes(delivery):
                    yield delivery
        num_before += span.end - span.begin
        note(num_before)


async def _answer(effect: Effect, delivery: Delivery[Any]) -> StageAnswer:
    try:
        return StageAnswer(input=delivery.ref, key=delivery.key, outputs=await _insist(effect, delivery))
    except (BadRecordError, HandlerBugError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        return StageAnswer(input=delivery.ref, key=delivery.key, error=reason)


async def _insist(effect: Effect, delivery: Delivery[Any]) -> list[Record]:
    """What the handler makes of a record; an outage is waited out for a while."""
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(UnavailableError),
        stop=tenacity.stop_after_attempt(MAX_TRIES),
        wait=tenacity.wait_exponential(multiplier=0.2, max=MAX_WAIT_S),
        before_sleep=lambda state: log.warning("replay interrupted record=%s failures=%d", delivery.ref, state.attempt_number),
        reraise=True,
    )

    async def handled() -> list[Record]:
        with guarded():
            return plain(await effect.handle(delivery))

    return await retrying(handled)
