"""Dead letters: which there are, one of them whole, and one retried, exactly once.

In: a transport, topics and stages of a run, where letters lie. Out: `LetterLine`s, a `KnownLetter`, a `Retried` for each letter
that is to be retried. Kept: a line for each letter that is listed; no value.

A retry is one transaction: a copy of the rejected record on the topic that it came from, marked for the stage that had rejected
it (`gagar.stream.retries`), and a mark on `dead-letters` that names the letter. The transactional id is one for each partition
number: who retries there last fences everyone before, and looks for marks only then. So no letter is retried twice.

Only a group that is still open has a use for the record. One that the gatherer has closed, or that a stage has ended with its
letter (grader, advantage publisher and learner hold whole groups), has its outcome, and each group has exactly one: such a
letter is refused.
"""

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

import msgspec

from gagar.errors import BadRecordError
from gagar.records import DeadLetter, Group, LogRef, Outcome, decode, encode
from gagar.stream.readers.references import LogReferences
from gagar.stream.readers.scans import scan_raw, scan_transport, spans_between
from gagar.stream.readers.watched import partitions_of
from gagar.stream.retries import RetryMark, mark_in, marked
from gagar.stream.spec import Stage, Topic, topic_of
from gagar.stream.transport import Partition, Producer, RawRecord, Send, Transport

MAX_ERROR_CHARS = 500
"""Of each error in a list."""


class LetterLine(msgspec.Struct, kw_only=True):
    """One dead letter in a list."""

    ref: LogRef
    at: float
    """Broker time."""
    stage: str
    source: LogRef
    key: bytes
    error: str
    """Its beginning."""
    num_bytes: int
    retried_as: LogRef | None = None


class KnownLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter, whole."""

    ref: LogRef
    at: float
    """Broker time."""
    record: DeadLetter
    retried_as: LogRef | None


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a retry."""

    letter: LogRef
    retried_as: LogRef | None = None
    """Where the copy lies; none if it was refused."""
    refusal: str = ""
    """Why not."""


async def list_letters(transport: Transport, topics: Sequence[Topic], stage: str = "") -> list[LetterLine]:
    """Every dead letter, of one stage if it is named, in the order of broker time."""
    lines: dict[LogRef, LetterLine] = {}
    async with aclosing(scan_transport(transport, [topic_of(topics, DeadLetter)])) as deliveries:
        async for delivery in deliveries:
            record = delivery.record
            if record.retried_as is not None and record.source in lines:
                lines[record.source].retried_as = record.retried_as
            elif record.retried_as is None and stage in ("", record.stage):
                lines[delivery.ref] = LetterLine(
                    ref=delivery.ref,
                    at=delivery.at,
                    stage=record.stage,
                    source=record.source,
                    key=record.key,
                    error=record.error[:MAX_ERROR_CHARS],
                    num_bytes=len(record.value),
                )
    return sorted(lines.values(), key=lambda line: (line.at, line.ref))


async def find_letter(transport: Transport, topics: Sequence[Topic], ref: LogRef) -> KnownLetter:
    """The dead letter at a place; raises BadRecordError if there is none, UnavailableError."""
    raw, record = await _read(transport, topic_of(topics, DeadLetter), ref)
    marks = await _marks(transport, Partition(ref.topic, ref.partition), ref.offset)
    return KnownLetter(ref=ref, at=raw.time, record=record, retried_as=marks.get(ref))


async def retry_letters(
    transport: Transport, topics: Sequence[Topic], stages: Sequence[Stage], refs: Iterable[LogRef]
) -> AsyncGenerator[Retried, None]:
    """Retries letters, one after the other; each is a transaction of its own. Raises UnavailableError."""
    by_number: dict[int, list[LogRef]] = {}
    for ref in dict.fromkeys(refs):
        by_number.setdefault(ref.partition, []).append(ref)
    for number, chosen in sorted(by_number.items()):
        async with aclosing(Retrier(transport, topics, stages, number).retry(sorted(chosen))) as found:
            async for retried in found:
                yield retried


class Retrier:
    """Retries letters of one partition number."""

    def __init__(self, transport: Transport, topics: Sequence[Topic], stages: Sequence[Stage], number: int) -> None:
        self._transport = transport
        self._letters = topic_of(topics, DeadLetter)
        self._stages = {stage.name: stage for stage in stages}
        self._closing = [topic_of(topics, Outcome), topic_of(topics, Group)]
        self._number = number
        self._at = Partition(self._letters.name, number)
        self._num_partitions = 0
        self._references = LogReferences(transport, [self._letters])

    async def retry(self, refs: Sequence[LogRef]) -> AsyncGenerator[Retried, None]:
        """In the order given. That the letters are there is made sure of before anyone is fenced, marks are read after."""
        keys: dict[LogRef, bytes] = {}
        for ref in refs:
            try:
                keys[ref] = (await _read(self._transport, self._letters, ref))[0].key
            except BadRecordError as error:
                yield Retried(letter=ref, refusal=str(error))
        if not keys:
            return
        outputs = [self._letters, *{topic.name: topic for stage in self._stages.values() for topic in stage.inputs}.values()]
        producer = await self._transport.start_producer(f"{self._letters.name}.{self._number}", outputs)
        try:
            self._num_partitions = len(await partitions_of(self._transport, [self._letters]))
            marks = await _marks(self._transport, self._at, min(refs).offset)
            closed = await self._closed(set(keys.values()))
            for ref in keys:
                _, letter = await _read(self._transport, self._letters, ref)
                refusal = f"was retried already, as {marks[ref]}" if ref in marks else self._refusal(letter, closed)
                if refusal:
                    expected = f"dead letter {ref}: expected one that can be retried"
                    yield Retried(letter=ref, refusal=f"{expected}, got one that {refusal}")
                else:
                    yield Retried(letter=ref, retried_as=await self._write(producer, ref, letter))
        finally:
            await producer.close()
            await self._references.close()

    def _refusal(self, letter: DeadLetter, closed: dict[bytes, LogRef]) -> str:
        """Why a letter cannot be retried; empty if it can."""
        stage = self._stages.get(letter.stage)
        if stage is None or letter.source.topic not in {topic.name for topic in stage.inputs}:
            return f"is no input of a stage: {letter.stage} had it from {letter.source}"
        if stage.holds_groups:
            return f"has ended its group: {letter.stage} holds whole groups, and each group ends once"
        if letter.key in closed:
            return f"belongs to a group that has closed, at {closed[letter.key]}: nothing would come of it"
        if not letter.key:
            return "has no key, and so no group"
        is_ours = letter.source.partition == self._number == self._transport.number_of(letter.key, self._num_partitions)
        return "" if is_ours else f"came from another partition, {letter.source}"

    async def _closed(self, keys: set[bytes]) -> dict[bytes, LogRef]:
        """Of the groups among `keys` that the gatherer has closed, or that have ended otherwise, a record that says so."""
        closed: dict[bytes, LogRef] = {}
        for topic in self._closing:
            async with aclosing(scan_raw(self._transport, [Partition(topic.name, self._number)])) as raws:
                async for raw in raws:
                    if raw.key in keys and raw.value is not None:
                        closed[raw.key] = raw.ref
        return closed

    async def _write(self, producer: Producer, ref: LogRef, letter: DeadLetter) -> LogRef:
        """The copy and the mark in one transaction; readers see both when this returns."""
        earlier = mark_in(letter.headers)
        mark = RetryMark(stage=letter.stage, source=earlier.source if earlier else letter.source, letter=ref)
        copy = Send(topic=letter.source.topic, key=letter.key, value=letter.value, headers=marked(letter.headers, mark))
        await producer.begin()
        retried_as = await (await producer.send(copy))
        told = DeadLetter(
            stage=letter.stage, source=ref, error="retried", key=letter.key, value=b"", at=time.time(), retried_as=retried_as
        )
        told_at = await (await producer.send(Send(topic=self._letters.name, key=letter.key, value=encode(told))))
        await producer.commit("", {})
        await self._references.find(told_at)
        return retried_as


async def _read(transport: Transport, topic: Topic, ref: LogRef) -> tuple[RawRecord, DeadLetter]:
    """Raises BadRecordError if there is no dead letter at a place."""
    references, at = LogReferences(transport, [topic]), Partition(ref.topic, ref.partition)
    begin, end = (await spans_between(transport, await partitions_of(transport, [topic]))).get(at, (0, 0))
    try:
        if not begin <= ref.offset < end:
            raise BadRecordError(f"expected a dead letter, got none: the partition holds offsets {begin} to {end - 1}")
        raw = await references.find(ref)
        record = decode(DeadLetter, raw.value or b"")
        if record.retried_as is not None:
            raise BadRecordError(f"expected a dead letter, got the mark that {record.source} was retried")
    except BadRecordError as error:
        text = str(error)
        raise BadRecordError(text if str(ref) in text else f"{ref}: {text}") from error
    finally:
        await references.close()
    return raw, record


async def _marks(transport: Transport, at: Partition, since: int) -> dict[LogRef, LogRef]:
    """Letters of a partition that were retried, and as what, of the marks from an offset on."""
    marks: dict[LogRef, LogRef] = {}
    end = (await spans_between(transport, [at]))[at][1]
    spans = {at: (since, max(since, end))}
    async with aclosing(scan_raw(transport, [at], spans=spans)) as raws:
        async for raw in raws:
            try:
                record = decode(DeadLetter, raw.value or b"")
            except BadRecordError:
                continue
            if record.retried_as is not None:
                marks[record.source] = record.retried_as
    return marks
