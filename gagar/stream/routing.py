"""Between records and the log: which topic and key a record has, what a raw record holds, what a dead letter is.

Pure. A record that has no topic among the stage's outputs, or is larger than its topic takes, is a BadRecordError: the input
that caused it is dead-lettered.
"""

import time
from collections.abc import Sequence
from typing import Any

from gagar.errors import BadRecordError, GagarError
from gagar.records import DeadLetter, Outcome, PolicyVersion, Record, RunSettings, decode, encode
from gagar.stream.handlers import Delivery, Linked, Output, Tombstone
from gagar.stream.lanes.units import LinkedSend, Spot, Unit
from gagar.stream.retries import mark_in, place_of
from gagar.stream.spec import Stage, Topic
from gagar.stream.transport import RawRecord, Send

ENVELOPE_BYTES = 4096
"""Kept free in a record's bound for key, headers and the other fields of a dead letter."""
MAX_ERROR_CHARS = 8192


def key_of(record: Record) -> str:
    """The key of a record: its group, or the run and version of a policy; a run has one record of its settings."""
    if isinstance(record, PolicyVersion):
        return f"{record.run_id}/{record.version}"
    if isinstance(record, DeadLetter):
        return record.key.decode("utf-8", "replace")
    if isinstance(record, RunSettings):
        return "settings"
    return record.group_id


def to_delivery(raw: RawRecord, topic: Topic) -> Delivery[Any]:
    """The record in `raw`; raises BadRecordError."""
    if raw.value is None:
        raise BadRecordError(f"{raw.ref}: expected a {topic.record.__name__}, got a tombstone")
    key = _text(raw.key)
    if key is None and topic.record is not DeadLetter:
        raise BadRecordError(f"{raw.ref}: expected a key of UTF-8, got {raw.key[:40]!r}")
    try:
        record = decode(topic.record, raw.value)
    except BadRecordError as error:
        raise BadRecordError(f"{raw.ref}: {error}") from error
    mark = mark_in(raw.headers)
    return Delivery(
        ref=mark.source if mark is not None else raw.ref,
        key=key or "",
        record=record,
        at=raw.time,
        here=raw.here,
        is_retry=mark is not None,
    )


def _text(key: bytes) -> str | None:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        return None


class Router:
    """Encodes what a stage writes."""

    def __init__(self, stage: Stage, dead_letters: Topic) -> None:
        self.outputs: tuple[Topic, ...] = (*stage.outputs, dead_letters)
        """Every topic that the stage writes."""
        self.inputs = {topic.name: topic for topic in (*stage.inputs, *stage.tables, *stage.references)}
        self._stage = stage
        self._by_record: dict[type, Topic] = {topic.record: topic for topic in self.outputs}
        self._dead_letters = dead_letters
        if stage.holds_groups and Outcome not in self._by_record:
            raise GagarError(f"stage {stage.name}: expected outcomes among the outputs of a stage that holds groups, got none")

    def delivery(self, raw: RawRecord) -> Delivery[Any]:
        """An input, decoded; raises BadRecordError."""
        return to_delivery(raw, self.inputs[raw.at.topic])

    def encode(self, record: Record) -> Send:
        """A record as it goes out; raises BadRecordError."""
        topic = self._topic(record)
        key, value = key_of(record), encode(record)
        room = topic.max_record_bytes - ENVELOPE_BYTES
        if len(value) > room:
            raise BadRecordError(f"{topic.name} record of {key}: expected at most {room} bytes, got {len(value)}")
        return Send(topic=topic.name, key=key.encode(), value=value)

    def encode_all(self, outputs: Sequence[Output]) -> list[Send | LinkedSend]:
        """Outputs as they go out; raises BadRecordError."""
        return [self._encode_output(output) for output in outputs]

    def dead_unit(self, raw: RawRecord, error: str, *, inputs: tuple[Spot, ...] = (), ends_group: bool = False) -> Unit:
        """A unit that moves `raw` to the dead letters and ends its group if the stage holds groups (or `ends_group`)."""
        outputs = [self._dead_letter(raw, error)]
        group_id = _text(raw.key)
        if (self._stage.holds_groups or (ends_group and Outcome in self._by_record)) and group_id:
            outputs.append(self.encode(lost_group(group_id)))
        return Unit(inputs=inputs or (Spot(raw.at, raw.offset),), outputs=outputs, kind="dead", source=raw)

    def _encode_output(self, output: Output) -> Send | LinkedSend:
        if isinstance(output, Linked):
            return LinkedSend(first=self.encode(output.first), then=output.then)
        if isinstance(output, Tombstone):
            return Send(topic=self._topic(output.of).name, key=key_of(output.of).encode(), value=None)
        return self.encode(output)

    def _topic(self, record: Record) -> Topic:
        topic = self._by_record.get(type(record))
        if topic is None:
            names = ", ".join(topic.name for topic in self.outputs)
            raise BadRecordError(
                f"stage {self._stage.name}: expected outputs for {names}, got a {type(record).__name__}; see topology.stages"
            )
        return topic

    def _dead_letter(self, raw: RawRecord, error: str) -> Send:
        value = raw.value or b""
        room = self._dead_letters.max_record_bytes - ENVELOPE_BYTES - 4 * MAX_ERROR_CHARS
        if len(value) > room:
            error, value = f"cut from {len(value)} to {room} bytes; {error}", value[:room]
        letter = DeadLetter(
            stage=self._stage.name,
            source=place_of(raw),
            error=f"{raw.ref}: {error}" if str(raw.ref) not in error else error,
            key=raw.key,
            value=value,
            headers=list(raw.headers),
            at=time.time(),
        )
        return Send(topic=self._dead_letters.name, key=raw.key, value=encode(letter))


def lost_group(group_id: str) -> Outcome:
    """The end of a group whose record cannot be read: nothing but its id is known."""
    return Outcome(group_id=group_id, task_id="", purpose="training", kind="dropped", reason="dead_letter", at=time.time())
