"""Two answers to the same input side by side: what has changed, by the names of the fields.

In: records. Out: changes, and tallies of them over many answers in bounded memory. Fields that are marked as facts of a run of
the handler (`gagar.records.RUN_FACT`) are left out; floats are equal only bit for bit. Members of a group are found by their
sample_index, whatever their place in a list.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args, get_origin

import msgspec

from gagar.records import RUN_FACT, Outcome, Record

MAX_VALUES = 20
"""Pairs of values of a field that a tally tells apart."""
MAX_VALUE_CHARS = 160
OTHERS = "others"


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """One value that is not what it was."""

    path: str
    """Of the field. Example: `members[3].weight`, of the member with sample_index 3."""
    before: Any
    """As it was recorded; None if it was not there."""
    now: Any
    """As it is replayed; None if it is not there."""

    @property
    def field(self) -> str:
        """The path without sample indices. Example: `members.weight`."""
        return re.sub(r"\[\d+\]", "", self.path)


def changes_between(before: Record, now: Record) -> list[FieldChange]:
    """What has changed; nothing if both say the same."""
    if type(before) is not type(now):
        return [FieldChange(path="record", before=title_of(before), now=title_of(now))]
    return list(_changes("", before, now))


def tag_of(record: Record) -> str:
    """What kind of record it is. Example: `verdict/1`."""
    return str(type(record).__struct_config__.tag)


def title_of(record: Record) -> str:
    """A record in a word or two. Example: `group/1`, `outcome/1 dropped all_failed`."""
    return f"{tag_of(record)} {record.kind} {record.reason}".rstrip() if isinstance(record, Outcome) else tag_of(record)


@cache
def answer_fields(record_type: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a record that are part of an answer."""
    return tuple(field.name for field in msgspec.structs.fields(record_type) if not is_run_fact(field.type))


def is_run_fact(field_type: Any) -> bool:
    """Whether a field is marked as a fact of the handler's run."""
    return get_origin(field_type) is Annotated and RUN_FACT in get_args(field_type)


def _changes(path: str, before: Any, now: Any) -> Iterator[FieldChange]:
    if isinstance(before, msgspec.Struct) and type(before) is type(now):
        for name in answer_fields(type(before)):
            yield from _changes(f"{path}.{name}" if path else name, getattr(before, name), getattr(now, name))
    elif (befores := _by_sample(before)) | (nows := _by_sample(now)):
        for index in sorted(befores | nows):
            yield from _changes(f"{path}[{index}]", befores.get(index), nows.get(index))
    elif not _is_same(before, now):
        yield FieldChange(path=path, before=before, now=now)


def _by_sample(value: Any) -> dict[int, Any]:
    """Members by sample_index; empty if the value is no list of them."""
    items = value if isinstance(value, list) else []
    return {item.sample_index: item for item in items if hasattr(item, "sample_index")}


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, float) and isinstance(now, float):
        return before.hex() == now.hex()
    return bool(before == now)


class FieldTally(msgspec.Struct, kw_only=True):
    """How one field has changed over all answers."""

    count: int = 0
    """Values that are not what they were."""
    largest: float = 0.0
    """Of numbers: the largest difference."""
    values: dict[str, int] = {}
    """Of texts, and of yes and no: how often which became which. Example: `passed -> failed`."""


class ChangeTally:
    """Counts changes by field."""

    def __init__(self) -> None:
        self.fields: dict[str, FieldTally] = {}
        self.tasks: Counter[str] = Counter()
        """Answers that have changed, by task."""
        self._groups: set[str] = set()

    @property
    def num_groups(self) -> int:
        """Groups of which something has changed."""
        return len(self._groups)

    def add(self, group_id: str, task_id: str, changes: list[FieldChange]) -> None:
        """The changes of one answer."""
        self._groups.add(group_id)
        self.tasks[task_id] += 1
        for change in changes:
            self._count(self.fields.setdefault(change.field, FieldTally()), change.before, change.now)

    def _count(self, tally: FieldTally, before: Any, now: Any) -> None:
        tally.count += 1
        if isinstance(before, str | bool) and isinstance(now, str | bool):
            pair = f"{_text(before)} -> {_text(now)}"[:MAX_VALUE_CHARS]
            known = pair if pair in tally.values or len(tally.values) < MAX_VALUES else OTHERS
            tally.values[known] = tally.values.get(known, 0) + 1
        elif isinstance(before, int | float) and isinstance(now, int | float):
            tally.largest = max(tally.largest, abs(now - before))


def _text(value: str | bool) -> str:
    return (value or "none") if isinstance(value, str) else str(value).lower()
