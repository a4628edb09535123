"""Collects everything that the log holds of some groups, as it lies there.

In: a transport, the topics of a run, group ids. Out: raw records (key, headers, broker time and offset kept), one partition
number after the other, in each by topic in the order of `ORDER`, each topic in log order; and which of the records that others
refer to retention has taken. Kept: references to transcripts and tokens, of the groups of one partition number. Nothing is
committed.

All records of a group lie in one partition number: small topics are read there from the group's first request on and picked by
their key; transcripts and tokens are read by reference. A transcript that no record refers to (its verdict is not there yet, or
retention took it) is looked for between the request and the deadline.
"""

import math
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from gagar.errors import BadRecordError
from gagar.records import (
    DeadLetter,
    GradedGroup,
    Group,
    GroupAdvantages,
    LogRef,
    MemberAdvantage,
    Outcome,
    RolloutRequest,
    Trajectory,
    TrajectoryTokens,
    Verdict,
    decode,
)
from gagar.stream.readers.references import LogReferences
from gagar.stream.readers.scans import Spans, scan_raw, spans_between
from gagar.stream.readers.watched import partitions_of
from gagar.stream.spec import Topic
from gagar.stream.transport import Partition, RawRecord, Transport

ORDER = (RolloutRequest, Verdict, Group, GradedGroup, GroupAdvantages, Outcome, DeadLetter, Trajectory, TrajectoryTokens)
"""Record types in the order in which their topics are read."""
CLOCK_SKEW_S = 60.0
"""The most by which the clocks of two brokers, which date records, may differ."""
LATE_S = 600.0
"""A transcript is looked for so long beyond the deadline of its request."""


class KnownGroup(msgspec.Struct, kw_only=True):
    """What has been seen of one group while its partition is read."""

    group_size: int = 0
    asked: set[int] = set()
    """Samples of which a request was seen."""
    referred: set[int] = set()
    """Samples whose trajectory some record refers to."""
    since: float = 0.0
    """Broker time of the first request; 0: none was seen."""
    deadline: float = 0.0
    """The latest of the requests, in broker time."""

    @property
    def is_asked(self) -> bool:
        """Every request of the group was seen."""
        return 0 < self.group_size <= len(self.asked)

    @property
    def is_incomplete(self) -> bool:
        """Some attempt's trajectory is referred to by nothing; of an unreadable request nothing is known."""
        return len(self.referred) < max(self.group_size, len(self.asked), 1)


class Collector:
    """Collects once: iterate over `records()`, then look at `missing`."""

    def __init__(
        self,
        transport: Transport,
        topics: Sequence[Topic],
        group_ids: Iterable[str],
        *,
        with_tokens: bool = True,
        is_thorough: bool = False,
    ) -> None:
        """`topics`: those of the run (`topology.topics.TOPICS`). `with_tokens=False` leaves the token arrays in the log.
        `is_thorough`: a transcript that no record refers to is looked for even where every attempt has one, as a fault upstream
        may have doubled it."""
        self.missing: list[LogRef] = []
        """Records that others refer to and that the log no longer holds."""
        self._transport = transport
        self._topics = {topic.record: topic for topic in topics if topic.is_grouped}
        self._references = LogReferences(transport, list(self._topics.values()))
        self._keys = {group_id.encode() for group_id in group_ids}
        self._with_tokens = with_tokens
        self._is_thorough = is_thorough

    async def records(self) -> AsyncGenerator[RawRecord, None]:
        """Each record of the groups once; nothing of a group without a request. Raises UnavailableError. Close it
        (`aclosing`) if you do not read on."""
        num_partitions = len(await partitions_of(self._transport, [self._topics[RolloutRequest]]))
        by_number: dict[int, set[bytes]] = {}
        for key in self._keys:
            by_number.setdefault(self._transport.number_of(key, num_partitions), set()).add(key)
        try:
            for number, keys in sorted(by_number.items()):
                async with aclosing(self._of_number(KnownGroups(number, keys))) as raws:
                    async for raw in raws:
                        yield raw
        finally:
            await self._references.close()

    async def _of_number(self, known: "KnownGroups") -> AsyncGenerator[RawRecord, None]:
        async with aclosing(self._scan(RolloutRequest, known, await self._spans(RolloutRequest, known))) as raws:
            async for raw in raws:
                yield raw
                if known.are_asked:
                    break
        if not known.since:
            return
        # Ends are asked for downstream first: nothing is read whose cause came too late to be read.
        spans = {kind: await self._spans(kind, known, known.since - CLOCK_SKEW_S) for kind in reversed(ORDER[1:-2])}
        scans = [self._scan(kind, known, spans[kind]) for kind in ORDER[1:-2]]
        for raws in (*scans, self._trajectories(known), self._referred(known, TrajectoryTokens)):
            async with aclosing(raws):
                async for raw in raws:
                    yield raw

    async def _trajectories(self, known: "KnownGroups") -> AsyncGenerator[RawRecord, None]:
        span = known.span_of_incomplete(is_thorough=self._is_thorough)
        async with aclosing(self._referred(known, Trajectory)) as raws:
            async for raw in raws:
                yield raw
        if span is None:
            return
        seen = known.wanted.get(self._topics[Trajectory].name, set())
        async with aclosing(self._scan(Trajectory, known, await self._spans(Trajectory, known, *span))) as raws:
            async for raw in raws:
                if raw.ref not in seen:
                    yield raw

    async def _spans(self, record_type: type[Any], known: "KnownGroups", since: float = 0.0, until: float = math.inf) -> Spans:
        """What one topic holds by now of the broker times in `[since, until)`."""
        return await spans_between(self._transport, [Partition(self._topics[record_type].name, known.number)], since, until)

    async def _scan(self, record_type: type[Any], known: "KnownGroups", spans: Spans) -> AsyncGenerator[RawRecord, None]:
        """Records of the groups on one topic; what they refer to is noted."""
        async with aclosing(scan_raw(self._transport, list(spans), spans=spans)) as raws:
            async for raw in raws:
                if raw.key in known.groups:
                    known.note(raw, self._topics[record_type])
                    yield raw

    async def _referred(self, known: "KnownGroups", record_type: type[Any]) -> AsyncGenerator[RawRecord, None]:
        topic = self._topics[record_type]
        wanted = sorted(known.wanted.get(topic.name, ()))
        if not wanted or (record_type is TrajectoryTokens and not self._with_tokens):
            return
        spans = await spans_between(self._transport, await partitions_of(self._transport, [topic]))
        for ref in wanted:
            raw = await self._find(ref, spans)
            if raw is not None:
                known.note(raw, topic)
                yield raw

    async def _find(self, ref: LogRef, spans: Spans) -> RawRecord | None:
        """None if there is no such record any more. One beyond the end, of a wrong reference, is not waited for."""
        begin, end = spans.get(Partition(ref.topic, ref.partition), (0, 0))
        try:
            if begin <= ref.offset < end:
                return await self._references.find(ref)
        except BadRecordError:
            pass
        self.missing.append(ref)
        return None


class KnownGroups:
    """The groups of one partition number, and where the records lie that theirs refer to."""

    def __init__(self, number: int, keys: Iterable[bytes]) -> None:
        self.number = number
        self.groups = {key: KnownGroup() for key in keys}
        self.wanted: dict[str, set[LogRef]] = {}
        """By topic."""

    @property
    def since(self) -> float:
        """Broker time of the first request of all; 0: none was seen."""
        return min((group.since for group in self.groups.values() if group.since), default=0.0)

    @property
    def are_asked(self) -> bool:
        """Every request of every group was seen."""
        return all(group.is_asked for group in self.groups.values())

    def span_of_incomplete(self, *, is_thorough: bool) -> tuple[float, float] | None:
        """The broker times between which a trajectory that nothing refers to may lie; none if there is no such."""
        incomplete = [group for group in self.groups.values() if group.since and (is_thorough or group.is_incomplete)]
        if not incomplete:
            return None
        is_bounded = all(group.deadline for group in incomplete)
        until = max(group.deadline for group in incomplete) + CLOCK_SKEW_S + LATE_S if is_bounded else math.inf
        return min(group.since for group in incomplete) - CLOCK_SKEW_S, until

    def note(self, raw: RawRecord, topic: Topic) -> None:
        """Takes in what a record says about itself and others; one that cannot be read says nothing."""
        group = self.groups.get(raw.key)
        if group is None or raw.value is None:
            return
        if topic.record is RolloutRequest:
            group.since = min(group.since or raw.time, raw.time)
        try:
            record = decode(topic.record, raw.value)
        except BadRecordError:
            return
        if isinstance(record, RolloutRequest):
            group.group_size = max(group.group_size, record.group_size)
            group.asked.add(record.sample_index)
            group.deadline = max(group.deadline, raw.time + record.deadline_s)
        for member in members_of(record):
            if not isinstance(member, Trajectory):
                group.referred.add(member.sample_index)
        for ref in references_of(record):
            self.wanted.setdefault(ref.topic, set()).add(ref)


def references_of(record: Any) -> Iterator[LogRef]:
    """The transcripts, tokens and rejected records that a record refers to."""
    if isinstance(record, DeadLetter):
        yield record.source
    for member in members_of(record):
        if not isinstance(member, Trajectory):
            yield member.trajectory
        if member.attempt.tokens is not None:
            yield member.attempt.tokens


def members_of(record: Any) -> Sequence[Trajectory | Verdict | MemberAdvantage]:
    """The attempts that a record tells of."""
    if isinstance(record, Trajectory | Verdict):
        return [record]
    if isinstance(record, GradedGroup):
        return record.group.members
    return record.members if isinstance(record, Group | GroupAdvantages) else []
