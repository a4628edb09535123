"""What a stage's own code looks like to the runtime: ordinary typed functions and objects, records in, records out.

The runtime picks the topic of an output by its type and the key by `key_of`; a handler never sees a client.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from gagar.records import LogRef, Record

T = TypeVar("T", bound=msgspec.Struct, covariant=True)
S = TypeVar("S")
RecordT = TypeVar("RecordT", bound=msgspec.Struct)


class Delivery(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One input record, as a handler gets it."""

    ref: LogRef
    """Where it lies; outputs refer to it by this. `ref.topic` is the topic's name without the run's prefix."""
    key: str
    record: T
    at: float
    """Broker time of the record, Unix seconds."""
    here: float = 0.0
    """The same moment by this host's monotonic clock: what a handler's deadline counts from."""
    is_retry: bool = False
    """A copy of a dead letter, see `gagar.stream.retries`; `ref` is the place of the record that was rejected."""


class Linked(msgspec.Struct, frozen=True, kw_only=True):
    """Two outputs of one transaction, the second of which refers to the first: `then(ref)` is called with the offset that the
    broker gave to `first`."""

    first: Record
    then: Callable[[LogRef], Record]


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a key of a compacted topic. Example: a policy version whose weights have been removed."""

    of: Record
    """A record with that key, e.g. the one to remove."""


Output = Record | Linked | Tombstone


class References(Protocol):
    """Reads records by where they lie."""

    async def read(self, refs: Sequence[LogRef], record_type: type[RecordT], /) -> list[RecordT]:
        """The records at `refs`, in that order. Raises BadRecordError for one that is gone or is another record."""


class Handler:
    """What every handler may do beside its work; the defaults do nothing."""

    async def open(self, references: References) -> None:
        """Called once before the first delivery; self-tests belong here. Raises UnavailableError or ConfigError."""

    def observe(self, record: Record, /) -> None:
        """A record of a table of the stage, in log order per key; the past ones before the first delivery or unit."""

    async def close(self) -> None:
        """Called once after the last delivery, within the shutdown deadline, if `open` succeeded."""


class Effect(Handler, ABC):
    """Record in, records out, with the outside world between. May take hours; is cancelled only at the shutdown deadline.

    Raises BadRecordError (dead letter), UnavailableError (retried, then the breaker opens) or anything else (a bug: retried
    twice, then a dead letter).
    """

    @abstractmethod
    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        """The outputs that one input causes."""


class Transform(Effect):
    """A function from one record to records: pure and quick (under a few milliseconds: it runs on the event loop)."""

    def __init__(self, function: Callable[[Any], Sequence[Output]]) -> None:
        self._function = function

    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        return self._function(delivery.record)


class Reduced(msgspec.Struct, frozen=True, kw_only=True):
    """What a reducer answers: outputs, and whether the key's unit of work is closed with them.

    All inputs that a key has received since it opened are finished together with `outputs`, in one transaction, when
    `is_closed`. An open key's inputs stay unfinished: its state is rebuilt by delivering them again.
    """

    outputs: Sequence[Output] = ()
    is_closed: bool = False


class Reducer(Handler, ABC, Generic[S]):
    """Keyed state over the deliveries of a key from all inputs, in any interleaving. Pure: time is an argument.

    `now` is stream time: the log's time when the partition is read up to its end, else the time of the last record read; so
    a backlog is never judged by the clock of the day on which it is read, and no host's own clock counts.
    """

    @abstractmethod
    def start(self, key: str) -> S:
        """The state of a key before its first delivery."""

    @abstractmethod
    def apply(self, state: S, delivery: Delivery[Any], now: float) -> Reduced:
        """Takes a delivery into the state of its key."""

    @abstractmethod
    def wake_at(self, state: S) -> float | None:
        """Stream time at which `expire` is due; none if only a delivery can move it."""

    @abstractmethod
    def expire(self, state: S, now: float) -> Reduced:
        """What is due at `now`, without a delivery."""

    @abstractmethod
    def is_late(self, delivery: Delivery[Any], is_finished: Callable[[LogRef], bool]) -> bool:
        """Whether a delivery belongs to a key that has closed already, so that it is counted and goes nowhere. `is_finished`
        says of an input of the same partition number whether its unit is committed."""


class Source(Handler, ABC):
    """Makes records from a cursor and from tables; there is one of it at a time. The cursor is committed with the records."""

    @abstractmethod
    def restore(self, cursor: bytes) -> None:
        """Called once with the committed cursor (empty at the first start), before any record of a table and any unit."""

    @abstractmethod
    def next_unit(self) -> tuple[Sequence[Output], bytes] | None:
        """The next records to make and the cursor after them; none if nothing is due. The records of one answer become
        visible together or not at all."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """The planned end: nothing is due and nothing ever will be; the stage stops with exit code 0."""


class Standalone(ABC):
    """Reads the log by positions of its own and serves itself: the learner."""

    @abstractmethod
    def run(self) -> None:
        """Serves until SIGTERM or the planned end; raises GagarError otherwise."""
