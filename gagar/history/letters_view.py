"""Dead letters as dicts for JSON, and as text for people.

In: letters and lines of `gagar.history.letters`. Out: what `gagar dead-letters` and `gagar show dead-letter` print. Whatever a
rejected record holds is hostile text.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from gagar.errors import BadRecordError
from gagar.history.group_view import fact, table
from gagar.history.letters import KnownLetter, LetterLine, Retried
from gagar.history.plain import moment, one_line, plain, printable
from gagar.records import decode
from gagar.stream.spec import Topic

SHOWN_BYTES = 256
"""Of a value that nobody can decode."""


def name_of(line: LetterLine | KnownLetter) -> str:
    """A dead letter as commands take it: partition and offset. Example: `3@118`."""
    return f"{line.ref.partition}@{line.ref.offset}"


def line_object(line: LetterLine) -> dict[str, Any]:
    """One dead letter in a list."""
    return {"id": name_of(line), **plain(line), "key": key_text(line.key)}


def letter_object(letter: KnownLetter, topics: Sequence[Topic]) -> dict[str, Any]:
    """One dead letter, whole; `record` is what it holds, if that can be decoded."""
    fields = plain(letter.record) | {"key": key_text(letter.record.key), "retried_as": plain(letter.retried_as)}
    return {"id": name_of(letter), "ref": str(letter.ref), "time": letter.at, **fields, "record": plain(held(letter, topics))}


def retried_object(retried: Retried) -> dict[str, Any]:
    """What became of one retry."""
    return {"letter": str(retried.letter), "retried_as": plain(retried.retried_as), "refusal": retried.refusal}


def render_lines(lines: Sequence[LetterLine]) -> RenderableType:
    """A list of dead letters for people."""
    rows = table("id", "at", "stage", "record", "key", "retried as", "error")
    for line in lines:
        retried, key = str(line.retried_as or ""), one_line(key_text(line.key), 40)
        error = one_line(line.error.removeprefix(f"{line.source}: "), 100)
        rows.add_row(name_of(line), moment(line.at), printable(line.stage), str(line.source), key, retried, error)
    return rows


def render_retries(found: Sequence[Retried]) -> RenderableType:
    """What became of retries, a line for each."""
    return Lines(
        *(
            Text(printable(retried.refusal), style="red")
            if retried.refusal
            else Text(f"{retried.letter} as {retried.retried_as}")
            for retried in found
        )
    )


def render_letter(letter: KnownLetter, topics: Sequence[Topic]) -> RenderableType:
    """One dead letter for people."""
    record, value = letter.record, held(letter, topics)
    content = msgspec.json.format(msgspec.json.encode(plain(value)), indent=2).decode() if value is not None else ""
    headers = ", ".join(f"{name}={data!r}" for name, data in record.headers)
    return Lines(
        fact("dead letter", f"{name_of(letter)} at {letter.ref}, {moment(letter.at)}", "bold"),
        fact("stage", printable(record.stage)),
        fact("record", f"{record.source}, key {one_line(key_text(record.key))}, {len(record.value)} bytes"),
        fact("headers", printable(headers) or "none"),
        fact("retried", f"as {letter.retried_as}" if letter.retried_as else "no"),
        Text(),
        Text(printable(record.error), style="red"),
        Text(),
        Text(printable(content) if content else f"cannot be decoded: {record.value[:SHOWN_BYTES]!r}"),
    )


def held(letter: KnownLetter, topics: Sequence[Topic]) -> msgspec.Struct | None:
    """The record that a dead letter holds; none if it cannot be decoded."""
    topic = next((topic for topic in topics if topic.name == letter.record.source.topic), None)
    if topic is None:
        return None
    try:
        return decode(topic.record, letter.record.value)
    except BadRecordError:
        return None


def key_text(key: bytes) -> str:
    """A key of any bytes as text."""
    return key.decode("utf-8", "backslashreplace")
