"""Retried records: copies of dead letters, written once more to their topic, for the one stage that had rejected them.

In: the headers of a record. Out: the mark of a retry. A retried record stands for the one that it is a copy of: a handler gets
it with the place of that one, so whatever follows refers to a record that was there from the start; every other stage passes it
over, and so do scans. Pure.
"""

from collections.abc import Iterable

import msgspec

from gagar.records import LogRef
from gagar.stream.transport import Headers, RawRecord

HEADER = "gagar-retry"


class RetryMark(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a retried record."""

    stage: str
    """The stage that had rejected the record."""
    source: LogRef
    """Where the record lay that was rejected first."""
    letter: LogRef
    """The dead letter that is retried."""


_decoder = msgspec.json.Decoder(RetryMark)


def marked(headers: Iterable[tuple[str, bytes]], mark: RetryMark) -> list[tuple[str, bytes]]:
    """Headers of a copy: those of the record, with this mark instead of an earlier one."""
    return [*(pair for pair in headers if pair[0] != HEADER), (HEADER, msgspec.json.encode(mark))]


def mark_in(headers: Headers) -> RetryMark | None:
    """The mark among the headers; none of an ordinary record."""
    for name, value in headers:
        if name == HEADER:
            try:
                return _decoder.decode(value)
            except msgspec.DecodeError:
                return None
    return None


def is_for_another(raw: RawRecord, stage: str) -> bool:
    """Whether a record is a retry that another stage is to have."""
    mark = mark_in(raw.headers)
    return mark is not None and mark.stage != stage


def place_of(raw: RawRecord) -> LogRef:
    """Where a record lies; of a retry, where the one lay that it is a copy of."""
    mark = mark_in(raw.headers)
    return raw.ref if mark is None else mark.source
