"""What the runtime needs of a log: membership, readers, transactional producers. Implementations: `memory`, `kafka`.

Topics are named without the run's prefix, groups and transactional ids likewise (`<stage>`, `<stage>.<partition>`): the
transport puts the run's name before each. Promised by every implementation: readers see committed records only; the latest
producer to start with an id wins and every earlier one fails with FencedError; what a transaction wrote and the offsets that
it committed become visible together or not at all. Every other failure of the log is an UnavailableError.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gagar.errors import GagarError
from gagar.records import LogRef
from gagar.stream.log_clock import LogClock
from gagar.stream.spec import Topic

Headers = Sequence[tuple[str, bytes]]


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


class TopicIdentity(NamedTuple):
    """What a topic is beyond its name."""

    topic_id: str
    """Another one when the topic is deleted and made anew; empty if the log tells none."""
    num_partitions: int


class RawRecord(msgspec.Struct, kw_only=True):
    """A record as it lies in the log."""

    at: Partition
    offset: int
    key: bytes
    value: bytes | None
    """None: a tombstone."""
    headers: Headers = ()
    time: float
    """Broker time, Unix seconds."""
    here: float = 0.0
    """The same moment by this host's monotonic clock."""

    @property
    def ref(self) -> LogRef:
        return LogRef(topic=self.at.topic, partition=self.at.number, offset=self.offset)


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group's position in a partition."""

    offset: int
    metadata: str = ""


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """A record to write; its key picks the partition."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Headers = ()
    time: float | None = None
    """Broker time in another log, Unix seconds, which a topic with `message.timestamp.type=CreateTime` keeps; None: now."""


class OutOfRangeError(GagarError):
    """The log no longer holds (or never held) the offset that a reader stands at."""

    def __init__(self, at: Partition, offset: int, earliest: int, end: int) -> None:
        super().__init__(f"{at}@{offset}: expected an offset from {earliest} to {end}, got one that the log does not hold")
        self.at, self.offset, self.earliest, self.end = at, offset, earliest, end


class RefusedError(GagarError):
    """The log refuses this one record (too large); no retry can mend it."""


class Producer(Protocol):
    """One transaction after another. After any error it is dead: close it and start a new one."""

    async def begin(self) -> None: ...

    async def send(self, send: Send, /) -> Awaitable[LogRef]:
        """Hands the record over; the answer resolves to where it lies, or fails (RefusedError: this record only)."""

    async def commit(self, group: str, offsets: Mapping[Partition, Committed], /) -> None:
        """Ends the transaction. Raises FencedError; any other error leaves its outcome unknown."""

    async def close(self) -> None:
        """Aborts what is open if that is quickly done; bounded, raises nothing."""


class Reader(Protocol):
    """Reads given partitions from where it is told to; committed records only. Nothing is read before `seek`."""

    async def seek(self, at: Partition, offset: int | None, /) -> None:
        """The next record to read; None: the earliest there is."""

    async def poll(self, timeout_s: float, max_records: int, /) -> list[RawRecord]:
        """The next records of the partitions that are not paused, each in order; empty after `timeout_s`. Raises
        OutOfRangeError."""

    def pause(self, at: Partition, /) -> None: ...

    def resume(self, at: Partition, /) -> None: ...

    def position(self, at: Partition, /) -> int:
        """Offset after the last one read, transaction markers included."""

    def is_caught_up(self, at: Partition, /) -> bool:
        """Whether the position is at the last stable offset, as told by an answer of the log in the last seconds."""

    def end(self, at: Partition, /) -> int | None:
        """The last stable offset, as the last answer of the log told; none before there was one."""

    async def ends(self) -> dict[Partition, int]:
        """The last stable offset of each partition, asked for now."""

    async def offsets_at(self, time: float, /) -> dict[Partition, int]:
        """The first offset of each partition whose record the broker took at `time` (Unix seconds) or later; the last stable
        offset where there is none."""

    async def close(self) -> None: ...


class Owner(Protocol):
    """Is told which partition numbers a member owns."""

    async def on_revoked(self) -> None:
        """The group is about to be divided anew: commit what is finished. The group waits for this a few seconds."""

    def on_assigned(self, numbers: frozenset[int], /) -> None:
        """The division: exactly these are owned now."""


class Membership(Protocol):
    """This process's place in a consumer group."""

    @property
    def is_held(self) -> bool:
        """Whether the group's coordinator counts this process as a member, as far as is known here without asking."""

    async def run(self) -> None:
        """Joins and stays until cancelled (and in the group until `close`); raises if the membership is lost for good."""

    async def confirm(self) -> frozenset[int]:
        """The numbers owned, confirmed by the group's coordinator after this call: what a process that was stopped for a
        while believes to own is not enough to start a producer."""

    async def committed(self, partitions: Sequence[Partition], /) -> dict[Partition, Committed]:
        """The group's position in each partition; right only after the partition's producer has started. Every group has one
        from the start (`gagar.stream.kafka.initial_offsets`): raises UnavailableError if the log knows of none."""

    async def close(self) -> None: ...


class Transport(Protocol):
    """A way into the log."""

    clock: LogClock

    async def open(self) -> None: ...

    async def describe(self, topics: Sequence[Topic], /) -> dict[str, TopicIdentity]:
        """Those of the topics that exist, by name, as they are now."""

    def number_of(self, key: bytes, num_partitions: int, /) -> int:
        """The partition of so many that a producer writes records of a key to."""

    def join(self, group: str, topics: Sequence[Topic], owner: Owner, /) -> Membership:
        """A membership that joins as it runs; `owner` is told of each division."""

    async def start_producer(self, transactional_id: str, outputs: Sequence[Topic], /) -> Producer:
        """Fences every earlier producer of the id and settles its open transaction."""

    async def open_reader(self, partitions: Sequence[Partition], /, *, is_single: bool = False) -> Reader:
        """`is_single`: for reads of one record here and there; else for reading on."""

    async def close(self) -> None: ...
