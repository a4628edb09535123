"""The preflight: one transaction before any stage, so that a cluster on which none can work says so at once, and why.

In: a run's cluster. Out: nothing, or an error that names what to change. Kept: nothing; a record to the dead letters is written
and taken back by an abort, so that nobody ever reads it.

A stage waits for whatever may pass, such as a coordinator that moves. Only the preflight, for which somebody waits, calls it an
error: one that has not come within 20 s. Which error it is, the cluster's own settings tell.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from gagar.config import Run
from gagar.errors import ClusterRefusalError, ConfigError, FencedError, GagarError, UnavailableError
from gagar.stream.kafka.admin import Admin
from gagar.stream.kafka.topic_plan import too_small, wanted_topics
from gagar.stream.spec import Topic
from gagar.stream.together import run_apart
from gagar.stream.transport import Producer, Send

RECORD_S = 20.0
VALUE = bytes(1024)
"""Worth compressing, so that the codec is tried too."""


class Coordinators(NamedTuple):
    """One of the two kinds of coordinators that a cluster has, and where they keep what they know."""

    of: str
    topic: str
    setting: str


TRANSACTIONS = Coordinators("transactions", "__transaction_state", "transaction.state.log.replication.factor")
GROUPS = Coordinators("consumer groups", "__consumer_offsets", "offsets.topic.replication.factor")


def check_coordinators(admin: Admin, run_name: str, topic: Topic) -> None:
    """Tries a transaction that writes to `topic`, if that is there, and the offsets of a consumer group. Raises
    ClusterRefusalError for what only a change of the cluster mends, UnavailableError for what may pass."""
    run_apart(_try_transaction(admin, run_name, topic))
    try:
        admin.committed(f"{run_name}.preflight")
    except UnavailableError as error:
        raise _explained(admin, GROUPS, error) from error


def check_sizes(admin: Admin, run: Run, topics: Sequence[Topic]) -> None:
    """Raises ClusterRefusalError if one of the topics takes smaller records only than stages write; a user who may not see its
    settings is told of each record that is refused."""
    wanted = wanted_topics(run, topics)
    try:
        found = admin.describe(list(wanted))
    except ConfigError:
        return
    if wrong := too_small(wanted, found):
        raise ClusterRefusalError("\n".join(wrong))


async def _try_transaction(admin: Admin, run_name: str, topic: Topic) -> None:
    from gagar.stream.kafka.client import KafkaTransport

    transport = KafkaTransport(admin.kafka, run_name)
    await transport.open()
    try:
        is_there = bool(await transport.describe([topic]))
        try:
            producer = await transport.start_producer("preflight", [topic])
        except UnavailableError as error:
            raise _explained(admin, TRANSACTIONS, error) from error
        try:
            await producer.begin()
            if is_there:
                await _write(producer, topic)
        except FencedError:
            return  # by the preflight of another stage: it has just begun a transaction itself
        finally:
            await producer.close()
    finally:
        await transport.close()


async def _write(producer: Producer, topic: Topic) -> None:
    try:
        async with asyncio.timeout(RECORD_S):
            await (await producer.send(Send(topic=topic.name, key=b"preflight", value=VALUE)))
    except TimeoutError as error:
        raise UnavailableError(
            f"topic {topic.name}: expected a record to be taken within {RECORD_S:g} s, got no answer; "
            "fewer brokers may hold it now than its min.insync.replicas"
        ) from error


def _explained(admin: Admin, coordinators: Coordinators, error: UnavailableError) -> GagarError:
    """The error, and why there is no coordinator, as far as the cluster tells. Its brokers create the topic of one kind when
    the first client asks, and tell nobody but their logs that they cannot."""
    try:
        num_brokers, is_there = admin.num_brokers(), admin.has_topic(coordinators.topic)
        factor = admin.broker_setting(coordinators.setting)
    except GagarError:
        return error
    if factor and not is_there and int(factor) > num_brokers:
        return ClusterRefusalError(
            f"{coordinators.setting}: expected at most {num_brokers}, the number of brokers, got {factor}: there can be no "
            f"{coordinators.of}; change it in the configuration of the brokers and start them again, or start more brokers"
        )
    return UnavailableError(
        f"{error}; try again if the cluster has just started, else see whether it has brokers enough ({num_brokers} now) for "
        f"{coordinators.topic}: {coordinators.setting}, min.isr"
    )
