"""One transaction: the outputs of finished units and the offsets that finish them.

Every send is awaited before the commit, since the client commits a transaction whose batch was refused. Any error leaves the
producer dead; whether the transaction counts is then known only after a new producer has started.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from gagar.errors import BadRecordError, UnavailableError
from gagar.records import LogRef
from gagar.stream.guard import HandlerBugError, guarded
from gagar.stream.lanes.units import LinkedSend, Unit
from gagar.stream.routing import Router
from gagar.stream.transport import Committed, Partition, Producer, RefusedError


class RefusedUnitError(Exception):
    """One unit's output cannot be written; the other units are sound."""

    def __init__(self, unit: Unit, error: Exception) -> None:
        super().__init__(str(error))
        self.unit = unit


async def transact(
    producer: Producer,
    router: Router,
    units: Sequence[Unit],
    group: str,
    offsets: Mapping[Partition, Committed],
    timeout_s: float,
) -> None:
    """Writes and commits; raises RefusedUnitError, FencedError, UnavailableError (outcome unknown)."""
    try:
        async with asyncio.timeout(timeout_s):
            await producer.begin()
            await _write(producer, router, units)
            await producer.commit(group, offsets)
    except TimeoutError as error:
        size = f"{len(units)} units with {sum(unit.num_bytes for unit in units)} bytes"
        advice = "; if the cluster is well, raise kafka.transaction_timeout_s or its quota" if len(units) == 1 else ""
        raise UnavailableError(f"transaction of {group}: expected {size} within {timeout_s:g} s, got no end{advice}") from error


async def _write(producer: Producer, router: Router, units: Sequence[Unit]) -> None:
    """Hands over all firsts, then the seconds of linked outputs, then waits for every answer."""
    sent: list[tuple[Unit, LinkedSend | None, Awaitable[LogRef]]] = []
    for unit in units:
        with _blamed_on(unit):
            for output in unit.outputs:
                link = output if isinstance(output, LinkedSend) else None
                sent.append((unit, link, await producer.send(output.first if isinstance(output, LinkedSend) else output)))
    seconds: list[tuple[Unit, Awaitable[LogRef]]] = []
    for unit, link, answer in sent:
        with _blamed_on(unit):
            ref = await answer
            if link is not None:
                with guarded():
                    second = link.then(ref)
                seconds.append((unit, await producer.send(router.encode(second))))
    for unit, answer in seconds:
        with _blamed_on(unit):
            await answer


@contextmanager
def _blamed_on(unit: Unit) -> Iterator[None]:
    try:
        yield
    except (RefusedError, BadRecordError, HandlerBugError) as error:
        raise RefusedUnitError(unit, error) from error
