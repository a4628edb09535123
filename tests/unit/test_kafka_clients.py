"""Clients of the Kafka transport that are given up halfway: nothing of them stays open."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import IllegalOperation, NodeNotReadyError  # noqa: TID251  as the client raises it

from gagar.config import KafkaTable
from gagar.errors import UnavailableError
from gagar.stream.kafka.client import KafkaTransport
from gagar.stream.kafka.connecting import started, stopped, translated
from gagar.stream.kafka.metadata import topic_identities


class Client:
    """Starts and stops in two steps."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.proceed = asyncio.Event()

    async def start(self) -> None:
        await self._do("start")

    async def stop(self) -> None:
        await self._do("stop")

    async def _do(self, what: str) -> None:
        self.steps.append(f"{what} begun")
        await self.proceed.wait()
        self.steps.append(f"{what} done")


async def cancelled_halfway(client: Client, task: asyncio.Task[None]) -> None:
    """Cancels a task that waits for the client, which goes on a moment later."""
    while not client.steps:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    client.proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_start_that_is_cancelled_ends_and_the_client_is_stopped() -> None:
    client = Client()
    await cancelled_halfway(client, asyncio.create_task(started(client, "client", 10.0)))
    assert client.steps == ["start begun", "start done", "stop begun", "stop done"]


async def test_a_stop_that_is_cancelled_ends() -> None:
    client = Client()
    await cancelled_halfway(client, asyncio.create_task(stopped(client.stop(), "client")))
    assert client.steps == ["stop begun", "stop done"]


async def test_a_start_that_fails_stops_the_client() -> None:
    class Failing(Client):
        async def start(self) -> None:
            raise OSError("refused")

    client = Failing()
    client.proceed.set()
    with pytest.raises(OSError, match="refused"):
        await started(client, "client", 10.0)
    assert client.steps == ["stop begun", "stop done"]


async def test_a_connection_that_the_client_has_dropped_meanwhile_is_an_error_of_the_clients_own() -> None:
    """It looks the connection up again after the wait."""

    class Dropping:
        cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=1)])

        async def send(self, node: int, request: Any) -> Any:
            raise KeyError((node, 0))

    with pytest.raises(NodeNotReadyError, match="node 1: the connection was dropped"):
        await topic_identities(Dropping(), ["t"])


def test_a_transaction_that_is_lost_while_records_are_handed_over_is_an_outage_and_no_bug() -> None:
    """The client's error for it is none of its KafkaErrors."""
    with pytest.raises(UnavailableError, match="lane to advantages: expected an answer"), translated("lane to advantages"):
        raise IllegalOperation("Can't send messages while not in transaction")


@pytest.mark.parametrize(
    ("key", "hashed"), [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)]
)
def test_a_key_leads_where_every_kafka_client_writes_it(key: bytes, hashed: int) -> None:
    transport = KafkaTransport(KafkaTable(), "try")
    assert [transport.number_of(key, count) for count in (1, 3, 8)] == [(hashed & 0x7FFFFFFF) % count for count in (1, 3, 8)]
