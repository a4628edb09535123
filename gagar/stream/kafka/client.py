"""The Kafka transport: with `connecting`, `metadata`, `offsets` and `refusals` the only door to aiokafka (0.14).

What its client makes necessary is done here: a membership whose consumer never delivers (every rebalance would throw
positions and pauses away) beside readers with partitions of their own; sends whose answers are kept; bounded stops, since the
client's can hang or raise CancelledError when brokers are down; one record per batch above 16 KiB; zstd, never lz4.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator, Mapping, Sequence
from typing import Any

import aiokafka
from aiokafka import errors
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from gagar.broker.address import no_cluster
from gagar.broker.meeting import PROBE_S, check_cluster
from gagar.config import KafkaTable
from gagar.errors import FencedError, UnavailableError
from gagar.records import LogRef
from gagar.stream.handlers import Delivery
from gagar.stream.kafka.connecting import STOP_S, arguments_of, check_login, coordinator_fault, started, stopped, translated
from gagar.stream.kafka.metadata import topic_identities
from gagar.stream.kafka.offsets import committed_offsets, offset_fetch
from gagar.stream.kafka.refusals import NAMED_SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS
from gagar.stream.log_clock import LogClock
from gagar.stream.readers.scans import scan_transport
from gagar.stream.spec import Topic
from gagar.stream.together import told_of_cancellation
from gagar.stream.transport import Committed, OutOfRangeError, Owner, Partition, RawRecord, Send, TopicIdentity

log = logging.getLogger(__name__)

HEARTBEAT_MS = 1000
REBALANCE_TIMEOUT_MS = 15_000
REQUEST_TIMEOUT_MS = 15_000
FETCH_BYTES = 512 << 10
"""Prefetched per partition; a larger batch comes alone. Half costs a tenth of the throughput, twice a fifth more memory."""
CONNECT_S = 10.0
REJOIN_S = 1.0
MAX_REPLACED, REPLACED_S = (3, 12), 8.0
"""So often, with so many seconds for each, a place is taken by another and taken back only where two processes bear the same
name. Between the two numbers chance decides, so that one of them gives up first."""
FRESH_S = 5.0
"""An end older than this is none: the broker may have gone silent."""


class KafkaTransport:
    """`gagar.stream.transport.Transport` for one run on a Kafka cluster."""

    def __init__(self, kafka: KafkaTable, run_name: str, member: str = "") -> None:
        """`member`: name of this process in its consumer group, whose place outlives a restart; empty: it has none."""
        self._kafka = kafka
        self._member = member
        self._prefix = f"{run_name}."
        self._client: Any = None
        self.clock = LogClock()

    async def open(self) -> None:
        """Raises UnavailableError if no broker answers, ConfigError if the cluster is to be met in another way."""
        if self._kafka.has_sasl:
            await check_login(self._kafka)
        client = aiokafka.AIOKafkaConsumer(**await arguments_of(self._kafka), request_timeout_ms=REQUEST_TIMEOUT_MS)
        try:
            await started(client, "administration", CONNECT_S)
        except (errors.KafkaError, OSError, TimeoutError) as error:
            await asyncio.to_thread(check_cluster, self._kafka, PROBE_S)
            raise no_cluster(self._kafka.bootstrap_servers, repr(error)) from error
        self._client = client

    async def describe(self, topics: Sequence[Topic], /) -> dict[str, TopicIdentity]:
        names = {self._prefix + topic.name: topic.name for topic in topics}
        with translated(f"topics {', '.join(names.values())}"):
            async with asyncio.timeout(CONNECT_S):
                found = await topic_identities(self._client._client, list(names))
        return {names[name]: identity for name, identity in found.items()}

    def number_of(self, key: bytes, num_partitions: int, /) -> int:
        return int(DefaultPartitioner()(key, range(num_partitions), ()))

    def join(self, group: str, topics: Sequence[Topic], owner: Owner, /) -> "KafkaMembership":
        names = [self._prefix + topic.name for topic in topics]
        return KafkaMembership(self._kafka, self._prefix, group, names, owner, self._member)

    async def start_producer(self, transactional_id: str, outputs: Sequence[Topic], /) -> "KafkaProducer":
        producer = aiokafka.AIOKafkaProducer(
            **await arguments_of(self._kafka),
            transactional_id=self._prefix + transactional_id,
            transaction_timeout_ms=int(2000 * self._kafka.transaction_timeout_s),
            compression_type="zstd",
            max_request_size=max((topic.max_record_bytes for topic in outputs), default=1 << 20),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        with translated(f"producer {transactional_id}"):
            try:
                await started(producer, transactional_id, 2 * CONNECT_S)
            except TimeoutError as error:
                got = await coordinator_fault(self._client, self._prefix + transactional_id)
                raise UnavailableError(
                    f"producer {transactional_id}: expected its transaction coordinator within {2 * CONNECT_S:g} s, got {got}"
                ) from error
        return KafkaProducer(producer, self._prefix, transactional_id, self.clock)

    async def open_reader(self, partitions: Sequence[Partition], /, *, is_single: bool = False) -> "KafkaReader":
        consumer = aiokafka.AIOKafkaConsumer(
            **await arguments_of(self._kafka),
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            max_partition_fetch_bytes=1 if is_single else FETCH_BYTES,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        with translated("reader"):
            await started(consumer, "reader", CONNECT_S)
        return KafkaReader(consumer, self._prefix, partitions, self.clock)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await stopped(client.stop(), "administration")


class Answer:
    """Where a record that was sent came to lie. Its failure is never an exception that nobody retrieved."""

    def __init__(self, future: "asyncio.Future[Any]", topic: str, what: str, clock: LogClock | None) -> None:
        self._future, self._topic, self._what, self._clock = future, topic, what, clock
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def __await__(self) -> Generator[Any, None, LogRef]:
        with translated(self._what):
            metadata = yield from self._future.__await__()
        if self._clock is not None:
            self._clock.note_written(metadata.timestamp / 1000)
        return LogRef(topic=self._topic, partition=metadata.partition, offset=metadata.offset)


class KafkaProducer:
    """`gagar.stream.transport.Producer`."""

    def __init__(self, producer: Any, prefix: str, name: str, clock: LogClock) -> None:
        self._producer = producer
        self._prefix = prefix
        self._name = name
        self._clock = clock
        self._is_open = False

    async def begin(self) -> None:
        with translated(self._name):
            await self._producer.begin_transaction()
        self._is_open = True

    async def send(self, send: Send, /) -> Awaitable[LogRef]:
        with translated(f"{self._name} to {send.topic}"):
            future = await self._producer.send(
                self._prefix + send.topic,
                value=send.value,
                key=send.key,
                headers=list(send.headers),
                timestamp_ms=None if send.time is None else round(send.time * 1000),
            )
        # A time of an earlier log says nothing about this host's clock.
        return Answer(future, send.topic, f"{self._name} to {send.topic}", self._clock if send.time is None else None)

    async def commit(self, group: str, offsets: Mapping[Partition, Committed], /) -> None:
        entries = {
            TopicPartition(self._prefix + at.topic, at.number): OffsetAndMetadata(committed.offset, committed.metadata)
            for at, committed in offsets.items()
        }
        with translated(self._name):
            if entries:
                await self._producer.send_offsets_to_transaction(entries, self._prefix + group)
            await self._producer.commit_transaction()
        self._is_open = False

    async def close(self) -> None:
        await stopped(self._end(), self._name)

    async def _end(self) -> None:
        try:
            if self._is_open:
                with contextlib.suppress(errors.KafkaError, TimeoutError, AssertionError):
                    async with asyncio.timeout(STOP_S / 2):
                        await self._producer.abort_transaction()
        finally:
            try:
                await self._producer.stop()
            finally:
                await self._hang_up()
            self._look_at_failures()

    async def _hang_up(self) -> None:
        """The client's stop first waits for what it has still to send: broken off there, it leaves a task at work and
        connections open. Without them the requests end that the task waits for."""
        await self._producer.client.close()
        if self._producer._sender is not None:
            await self._producer._sender.close()

    def _look_at_failures(self) -> None:
        """The client leaves failed futures behind; those that nobody looked at would be reported when they are collected."""
        accumulator = self._producer._message_accumulator
        batches = {*accumulator._pending_batches, *(batch for queue in accumulator._batches.values() for batch in queue)}
        waiters = [batch._drain_waiter for batch in batches] + [self._producer._txn_manager._transaction_waiter]
        for waiter in waiters:
            if waiter is not None and waiter.done() and not waiter.cancelled():
                waiter.exception()


class KafkaReader:
    """`gagar.stream.transport.Reader`: a consumer without a group, whose partitions are its own until it closes."""

    def __init__(self, consumer: Any, prefix: str, partitions: Sequence[Partition], clock: LogClock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._names = {at: TopicPartition(prefix + at.topic, at.number) for at in partitions}
        self._ats = {name: at for at, name in self._names.items()}
        consumer.assign(list(self._names.values()))
        consumer.pause(*self._names.values())
        for name in self._names.values():
            consumer.seek(name, 0)  # a partition without a position is asked for one, paused or not
        self._waiting = set(partitions)

    async def seek(self, at: Partition, offset: int | None, /) -> None:
        name = self._names[at]
        with translated(f"seek {at}"):
            if offset is None:
                async with asyncio.timeout(CONNECT_S):
                    offset = (await self._consumer.beginning_offsets([name]))[name]
            self._consumer.seek(name, offset)
        if at in self._waiting:
            self._waiting.remove(at)
            self._consumer.resume(name)

    async def poll(self, timeout_s: float, max_records: int, /) -> list[RawRecord]:
        try:
            with translated("poll"):
                fetched = await self._consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=max_records)
        except UnavailableError as error:
            if isinstance(error.__cause__, errors.OffsetOutOfRangeError):
                await self._raise_out_of_range(error.__cause__)
            raise
        return [self._raw(name, record) for name, records in fetched.items() for record in records]

    def pause(self, at: Partition, /) -> None:
        self._consumer.pause(self._names[at])

    def resume(self, at: Partition, /) -> None:
        self._consumer.resume(self._names[at])

    def position(self, at: Partition, /) -> int:
        state = self._consumer._subscription.subscription.assignment.state_value(self._names[at])
        return int(state.position)

    def is_caught_up(self, at: Partition, /) -> bool:
        end, asked_ms = self.end(at), self._consumer.last_poll_timestamp(self._names[at])
        is_fresh = asked_ms is not None and time.time() - asked_ms / 1000 < FRESH_S
        return is_fresh and end is not None and self.position(at) >= end

    def end(self, at: Partition, /) -> int | None:
        end = self._consumer.last_stable_offset(self._names[at])
        return None if end is None else int(end)

    async def ends(self) -> dict[Partition, int]:
        with translated("end offsets"):
            async with asyncio.timeout(CONNECT_S):
                ends = await self._consumer.end_offsets(list(self._names.values()))
        return {self._ats[name]: end for name, end in ends.items()}

    async def offsets_at(self, time: float, /) -> dict[Partition, int]:
        ends = await self.ends()
        with translated("offsets of a time"):
            async with asyncio.timeout(CONNECT_S):
                found = await self._consumer.offsets_for_times(dict.fromkeys(self._names.values(), int(time * 1000)))
        return {at: min(found[name].offset, ends[at]) if found[name] else ends[at] for at, name in self._names.items()}

    async def close(self) -> None:
        await stopped(self._consumer.stop(), "reader")

    def _raw(self, name: TopicPartition, record: Any) -> RawRecord:
        return RawRecord(
            at=self._ats[name],
            offset=record.offset,
            key=record.key or b"",
            value=record.value,
            headers=record.headers,
            time=record.timestamp / 1000,
            here=self._clock.note_read(record.timestamp / 1000),
        )

    async def _raise_out_of_range(self, error: errors.OffsetOutOfRangeError) -> None:
        [(name, offset)] = error.args[0].items()
        with translated(f"offsets of {name.topic}"):
            async with asyncio.timeout(CONNECT_S):
                earliest = (await self._consumer.beginning_offsets([name]))[name]
                end = (await self._consumer.end_offsets([name]))[name]
        raise OutOfRangeError(self._ats[name], offset, earliest, end) from error


class KafkaMembership(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """`gagar.stream.transport.Membership`: a consumer that keeps the place in the group and delivers nothing."""

    def __init__(self, kafka: KafkaTable, prefix: str, group: str, names: list[str], owner: Owner, member: str) -> None:
        self._prefix = prefix
        self._group = group
        self._names = names
        self._owner = owner
        self._numbers: frozenset[int] = frozenset()
        self._is_settled = False
        self._kafka = kafka
        self._member = member
        self._max_replaced = random.randint(*MAX_REPLACED)
        self._member_ids: deque[tuple[str, float]] = deque(maxlen=self._max_replaced + 1)
        """What the group has called a member with a name, each time anew when its place had been taken, and since when."""
        self._consumer: Any = None

    @property
    def is_held(self) -> bool:
        coordinator = self._consumer._coordinator if self._consumer is not None else None
        if coordinator is None or coordinator.coordinator_id is None:
            return False
        return bool(self._is_settled and not coordinator._rejoin_needed_fut.done())

    async def run(self) -> None:
        """A client whose own tasks have died keeps quiet about it: it is replaced, and handlers go on meanwhile."""
        with translated(f"group {self._group}"):
            await self._start()
        while True:
            await self._stay()
            await self._rejoin()

    async def _start(self) -> None:
        assignor = RangePartitionAssignor if len(self._names) > 1 else type("Sticky", (StickyPartitionAssignor,), {})
        self._consumer = aiokafka.AIOKafkaConsumer(
            **await arguments_of(self._kafka),
            group_id=self._prefix + self._group,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            isolation_level="read_committed",
            max_partition_fetch_bytes=1,
            group_instance_id=self._member or None,
            session_timeout_ms=NAMED_SESSION_TIMEOUT_MS if self._member else SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            partition_assignment_strategy=[assignor],
        )
        await self._consumer.start()
        self._consumer.subscribe(self._names, listener=self)

    async def _stay(self) -> None:
        """Until the client's tasks are found dead. With a name, also until the group answers what the client does not know: so
        it says that another has taken the name."""
        suspicion = 0
        while suspicion < 2:
            try:
                with translated(f"group {self._group}"), told_of_cancellation(f"group {self._group}"):
                    await self._consumer.getmany(timeout_ms=500)
            except UnavailableError as error:
                if not (self._member or self._consumer._coordinator._coordination_task.done()):
                    raise
                log.error("membership lost group=%s error=%s", self._group, error)
                return
            self._check_name()
            suspicion = suspicion + 1 if self._is_lifeless() else 0
        log.error("membership lost group=%s error=a task of the client has ended", self._group)

    def _is_lifeless(self) -> bool:
        """Without a word: nobody asks the coordinator for a place any more, or nobody tells it that this member lives."""
        coordinator = self._consumer._coordinator
        heartbeat = coordinator._heartbeat_task
        is_quiet = self._is_settled and heartbeat is not None and heartbeat.done() and not coordinator._rejoin_needed_fut.done()
        return bool(coordinator._coordination_task.done() or is_quiet)

    def _check_name(self) -> None:
        """Raises FencedError if another process bears the name: each would take the other's place for ever."""
        ids = self._member_ids
        if len(ids) > self._max_replaced and ids[-1][1] - ids[0][1] < REPLACED_S * self._max_replaced:
            raise FencedError(
                f"group {self._group}: expected one process with the name {self._member}, got another that takes its place; "
                "start each with a --member of its own"
            )

    async def _rejoin(self) -> None:
        self._is_settled = False
        self._member_ids.clear()
        await self.close()
        while True:
            try:
                with translated(f"group {self._group}"):
                    await self._start()
                return
            except UnavailableError as error:
                log.warning("group not joined yet group=%s error=%s", self._group, error)
                await self.close()
                await asyncio.sleep(REJOIN_S)

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self._is_settled = False
        await self._owner.on_revoked()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._consumer.pause(*assigned)
        member_id = self._consumer._coordinator.member_id
        if self._member and (not self._member_ids or self._member_ids[-1][0] != member_id):
            self._member_ids.append((member_id, time.monotonic()))
        self._numbers = frozenset(name.partition for name in assigned)
        self._is_settled = True
        self._owner.on_assigned(self._numbers)

    async def confirm(self) -> frozenset[int]:
        while True:
            coordinator = self._consumer._coordinator if self._consumer is not None else None
            if self._is_settled and coordinator is not None and not coordinator._rejoin_needed_fut.done():
                with translated(f"heartbeat of {self._group}"):
                    is_alive = await coordinator._do_heartbeat()
                if is_alive and self._is_settled and not coordinator._rejoin_needed_fut.done():
                    return self._numbers
            await asyncio.sleep(0.2)

    async def committed(self, partitions: Sequence[Partition], /) -> dict[Partition, Committed]:
        names = {TopicPartition(self._prefix + at.topic, at.number): at for at in partitions}
        with translated(f"offsets of {self._group}"):
            async with asyncio.timeout(CONNECT_S):
                coordinator = self._consumer._coordinator
                if coordinator is None:
                    raise UnavailableError(f"offsets of {self._group}: expected a place in the group, got none yet")
                await coordinator.ensure_coordinator_known()
                found = committed_offsets(await coordinator._send_req(offset_fetch(self._prefix + self._group, names)))
        if missing := sorted(map(str, (at for name, at in names.items() if name not in found))):
            raise UnavailableError(
                f"offsets of {self._group}: expected one in each partition, got none in {', '.join(missing)}; "
                "if it stays so, run `gagar topics apply` with the --run and --set of this stage"
            )
        return {at: found[name] for name, at in names.items()}

    async def close(self) -> None:
        if self._consumer is not None:
            await stopped(self._consumer.stop(), self._group)


async def scan(
    kafka: KafkaTable, run_name: str, topics: Sequence[Topic], *, follow: bool = False
) -> AsyncIterator[Delivery[Any]]:
    """Committed records of `topics` from their start to their present end (or on and on with `follow`), decoded.

    Per partition in log order; tombstones and bad records are skipped, the latter with a warning. Raises UnavailableError.
    """
    transport = KafkaTransport(kafka, run_name)
    await transport.open()
    try:
        async for delivery in scan_transport(transport, topics, follow=follow):
            yield delivery
    finally:
        await transport.close()
