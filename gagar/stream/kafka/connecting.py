"""How clients of aiokafka start and stop, and their errors as ours.

In: a `KafkaTable` with an address, a client. Stops are bounded, since the client's can hang or raise CancelledError when
brokers are down; a start that fails leaves no connection open.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

from aiokafka import errors
from aiokafka.abc import AbstractTokenProvider

from gagar.broker.security import client_arguments, read_token
from gagar.config import KafkaTable
from gagar.errors import FencedError, UnavailableError
from gagar.stream.transport import RefusedError

log = logging.getLogger(__name__)

STOP_S = 2.0
FENCED = (errors.ProducerFenced, errors.InvalidProducerEpoch, errors.InvalidProducerIdMapping)
REFUSED = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """The token of OAUTHBEARER, read anew for each connection."""

    def __init__(self, kafka: KafkaTable) -> None:
        self._kafka = kafka

    async def token(self) -> str:
        return read_token(self._kafka)


def arguments_of(kafka: KafkaTable) -> dict[str, Any]:
    """What every client is opened with. Raises ConfigError."""
    token = {"sasl_oauth_token_provider": TokenFile(kafka)} if kafka.sasl_token_file else {}
    return client_arguments(kafka) | token


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """The client's errors as ours: fenced, refused, or unavailable."""
    try:
        yield
    except FENCED as error:
        raise FencedError(
            f"{what}: expected to own the place, got {type(error).__name__}: a successor has taken over"
        ) from error
    except REFUSED as error:
        raise RefusedError(f"{what}: expected a record that the broker takes, got {error}") from error
    except (errors.KafkaError, OSError, TimeoutError) as error:
        raise UnavailableError(f"{what}: expected an answer from the broker, got {error!r}") from error


async def stopped(stopping: Coroutine[Any, Any, None], what: str) -> None:
    """Waits for a client's stop, not for long and not for what it raises; if cancelled, too: a stop that nobody waits for may
    leave connections open."""
    task = asyncio.ensure_future(stopping)
    try:
        await asyncio.wait([task], timeout=STOP_S)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=STOP_S)
        raise
    finally:
        if not task.done():
            task.cancel()
            log.warning("client did not stop in time client=%s", what)
        elif not task.cancelled() and task.exception() is not None:
            log.debug("client stopped badly client=%s error=%r", what, task.exception())


async def started(client: Any, what: str, timeout_s: float) -> None:
    """Starts a client, and stops it if that fails.

    A start that is cancelled may come to its end first: broken off, it would leave its first connection open.
    """
    starting = asyncio.ensure_future(client.start())
    starting.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(starting)
    except BaseException:
        try:
            await asyncio.wait([starting], timeout=STOP_S)
        finally:
            starting.cancel()
        await stopped(client.stop(), what)
        raise
