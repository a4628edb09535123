"""Records as plain values for JSON, and hostile text as people may see it.

In: records and deliveries. Out: dicts, lists, numbers, text. References are written as `topic[partition]@offset`, bytes as
base64, keys of bytes as text with escapes. Pure.
"""

import base64
import time
from collections.abc import Collection
from typing import Any

import msgspec

from gagar.arrays import Tensor
from gagar.records import LogRef
from gagar.stream.handlers import Delivery


def plain(value: Any, leave_out: Collection[str] = ()) -> Any:
    """A record as a dict, deeply; fields named in `leave_out` are left out at every depth."""
    if isinstance(value, LogRef):
        return str(value)
    if isinstance(value, Tensor):
        return {"dtype": value.dtype, "length": value.length}
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value).items()
        return {name: plain(field, leave_out) for name, field in fields if name not in leave_out}
    if isinstance(value, dict):
        return {str(key): plain(item, leave_out) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, leave_out) for item in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes | memoryview) else value


def told(delivery: Delivery[Any] | None, leave_out: Collection[str] = ()) -> dict[str, Any] | None:
    """A delivery: where the record lies, when the broker took it, and its fields."""
    if delivery is None:
        return None
    return {"ref": str(delivery.ref), "time": delivery.at, **plain(delivery.record, leave_out)}


def printable(text: str) -> str:
    """Text of an agent as a terminal may get it: line feeds and tabs stay, other control characters become visible."""
    return "".join(char if char.isprintable() or char in "\n\t" else escaped(char) for char in text)


def escaped(char: str) -> str:
    """A character by its code. Example: `\\x1b`."""
    return char.encode("unicode_escape").decode("ascii")


def one_line(text: str, max_chars: int = 200) -> str:
    """The first line of a text, printable and cut."""
    line = printable(text.strip().partition("\n")[0])
    return line if len(line) <= max_chars else f"{line[: max_chars - 3]}..."


def moment(at: float) -> str:
    """A time as `2026-01-31 12:00:00 UTC`; empty for 0."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at)) if at else ""
