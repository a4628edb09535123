"""How clients of aiokafka log in, start and stop, and their errors as ours.

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
from aiokafka.client import CoordinationType
from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest

from gagar.broker.security import SASL_PASSWORD, client_arguments, read_token
from gagar.config import KafkaTable
from gagar.errors import ClusterRefusalError, ConfigError, FencedError, UnavailableError
from gagar.stream.kafka.refusals import refusal_of
from gagar.stream.transport import RefusedError

log = logging.getLogger(__name__)

STOP_S = 2.0
LOGIN_S = 5.0
FENCED = (errors.ProducerFenced, errors.InvalidProducerEpoch, errors.InvalidProducerIdMapping)
REFUSED = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
NOT_LOGGED_IN = (errors.SaslAuthenticationFailed, errors.AuthenticationFailedError)


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """The token of OAUTHBEARER, read anew for each connection."""

    def __init__(self, kafka: KafkaTable) -> None:
        self._kafka = kafka

    async def token(self) -> str:
        return read_token(self._kafka)


async def arguments_of(kafka: KafkaTable) -> dict[str, Any]:
    """What a client is opened with; files are read anew, since secrets and certificates are renewed. Raises ConfigError."""
    token = {"sasl_oauth_token_provider": TokenFile(kafka)} if kafka.sasl_token_file else {}
    return await asyncio.to_thread(client_arguments, kafka) | token


async def check_login(kafka: KafkaTable) -> None:
    """Raises ConfigError if the cluster does not take the name and the password, or the token: the clients try those again, for
    ever. A broker that does not answer says nothing of them."""
    arguments = await arguments_of(kafka)
    for server in arguments.pop("bootstrap_servers"):
        host, _, port = server.rpartition(":")
        try:
            connection = await create_conn(host.strip("[]"), int(port), request_timeout_ms=int(LOGIN_S * 1000), **arguments)
        except NOT_LOGGED_IN as error:
            raise ConfigError(_refused_login(kafka, str(error))) from error
        except (errors.KafkaError, OSError, TimeoutError):
            continue
        try:
            # The client takes whatever a broker says of a token for a yes, also that it has expired.
            if kafka.sasl_token_file and not (await connection.send(MetadataRequest([]))).brokers:
                raise ConfigError(_refused_login(kafka, "no brokers after it, as for a token that has expired"))
        except errors.KafkaError as error:
            raise ConfigError(_refused_login(kafka, "the connection's end after it")) from error
        finally:
            await connection.close()
        return


def _refused_login(kafka: KafkaTable, error: str) -> str:
    if token := kafka.sasl_token_file:
        return f"kafka.sasl_token_file: expected a token that the cluster takes, got its no: {error}; renew that in {token}"
    where = kafka.sasl_password_file or SASL_PASSWORD
    return (
        f"kafka.sasl_username: expected a name and a password that the cluster takes, got its no to {kafka.sasl_username!r}: "
        f"{error}; mend the name, or the password in {where}"
    )


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """The client's errors as ours: fenced, a record refused, refused for good, or unavailable, which may pass."""
    try:
        yield
    except FENCED as error:
        raise FencedError(
            f"{what}: expected to own the place, got {type(error).__name__}: a successor has taken over"
        ) from error
    except REFUSED as error:
        raise RefusedError(f"{what}: expected a record that the broker takes, got {error}; see `gagar topics check`") from error
    except (errors.KafkaError, errors.IllegalOperation, NotImplementedError, OSError, TimeoutError) as error:
        if refused := refusal_of(error):
            refusal, cause = refused
            raise ClusterRefusalError(f"{what}: expected {refusal.expected}, got {cause}; {refusal.advice}") from error
        # An illegal operation: the transaction was lost, as to a fence, while its records were still handed over.
        raise UnavailableError(f"{what}: expected an answer from the broker, got {error!r}") from error


async def coordinator_fault(consumer: Any, transactional_id: str) -> str:
    """What the brokers say when they are asked for a producer's coordinator by another client, if there is one: the producer's
    own keeps that to itself."""
    if consumer is None:
        return "none"
    try:
        async with asyncio.timeout(STOP_S):
            await consumer._client.coordinator_lookup(CoordinationType.TRANSACTION, transactional_id)
    except errors.CoordinatorNotAvailableError:
        return "none: the brokers have no such coordinator now"
    except (errors.KafkaError, KeyError, AssertionError, TimeoutError) as error:  # the client may have lost its connections
        return f"none: {error!r}"
    return "one that does not take it now"


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
