"""The frontier of one partition: which offsets have been delivered, which are finished, and how that survives a restart.

In: offsets as they are read (in order, with gaps where transaction markers, aborted or compacted records lie) and as their
units finish (in any order). Out: what to commit: the low watermark (the first unfinished offset) and, in the offset's metadata,
a bitmap of what is finished beyond it. Pure; kept: the offsets in work.

Example: delivered 0 1 2 4 (3 is a marker), finished 1 and 2: the watermark is 0 and the bitmap says that 1 to 3 need no second
delivery. After a restart from that, 0 and 4 are delivered again, and nothing else.
"""

import base64
import binascii
from collections import deque
from collections.abc import Collection, Iterable

from gagar.errors import GagarError

SPAN_LIMIT = 16_384
"""Offsets from the watermark to the last one delivered: 2 KiB of bitmap."""
METADATA_LIMIT = 4096
"""Bytes of metadata that the broker takes; its refusal would cost the producer."""
NOTE_LIMIT = 1000
"""Bytes of a note; with the longest bitmap it still fits."""
PREFIX = "g1:"
"""Version tag; base64 follows: length of the note (2 bytes, little-endian), note, bitmap (bit i: watermark + i is finished)."""


AT_START = "g1:AAA="
"""Metadata of an offset beyond which nothing is finished, without a note."""


class Frontier:
    """See the module. A new one begins at `low` with nothing delivered."""

    def __init__(self, low: int = 0, finished: Iterable[int] = (), note: bytes = b"", *, is_bounded: bool = True) -> None:
        """`is_bounded`: its span has a limit, so that its snapshot fits into the metadata of an offset."""
        self.note = note
        """A few bytes that are committed with the offset: a source's cursor."""
        self._is_bounded = is_bounded
        self._next = low
        self._pending: set[int] = set()
        self._order: deque[int] = deque()
        self._restored = set(finished)
        self._restored_end = max(self._restored, default=low - 1) + 1

    @property
    def next(self) -> int:
        """Offset after the last one delivered or passed over."""
        return self._next

    @property
    def num_pending(self) -> int:
        """Offsets that are delivered and not finished."""
        return len(self._pending)

    @property
    def low(self) -> int:
        """The low watermark: everything below is finished."""
        while self._order and self._order[0] not in self._pending:
            self._order.popleft()
        return self._order[0] if self._order else self._next

    def has_room(self, offset: int) -> bool:
        """Whether `offset` can be delivered now without the span growing past its limit."""
        return not self._pending or not self._is_bounded or offset - self.low < SPAN_LIMIT

    def deliver(self, offset: int) -> bool:
        """Takes the next offset that was read; False if it was finished before a restart. Offsets left out are gaps."""
        if offset < self._next:
            raise ValueError(f"offset {offset}: expected {self._next} or more, got one that was delivered already")
        if not self.has_room(offset):
            raise ValueError(f"offset {offset}: expected less than {self.low} + {SPAN_LIMIT}, got a longer span")
        was_finished = offset in self._restored
        self.advance(offset + 1)
        if not was_finished:
            self._pending.add(offset)
            self._order.append(offset)
        return not was_finished

    def advance(self, position: int) -> None:
        """Everything unread below `position` is a gap: the reader has passed it. As far as the span has room."""
        if self._pending and self._is_bounded:
            position = min(position, self.low + SPAN_LIMIT)
        if position > self._next:
            self._restored.difference_update(range(self._next, min(position, self._restored_end)))
            self._next = position

    def finish(self, offsets: Iterable[int]) -> None:
        """The units of `offsets` are committed."""
        for offset in offsets:
            self._pending.remove(offset)

    def is_finished(self, offset: int) -> bool:
        """Whether no delivery of `offset` is due any more."""
        return offset not in self._pending if offset < self._next else offset in self._restored

    def finished_beyond(self) -> list[int]:
        """Offsets beyond the low watermark of which no delivery is due."""
        return [offset for offset in range(self.low, max(self._next, self._restored_end)) if self.is_finished(offset)]

    def snapshot(self, finishing: Collection[int] = ()) -> tuple[int, str]:
        """What to commit, offset and metadata, as if `finishing` were finished."""
        pending = self._pending.difference(finishing)
        low = min(pending) if pending else self._next
        read = self._next - low
        num_bytes = (max(self._restored_end, self._next) - 1 - low) // 8 + 1
        bits = bytearray((b"\xff" * (read // 8) + bytes([(1 << read % 8) - 1])).ljust(num_bytes, b"\0"))
        for offset in pending:
            bits[(offset - low) >> 3] &= ~(1 << ((offset - low) & 7))
        for offset in self._restored:
            bits[(offset - low) >> 3] |= 1 << ((offset - low) & 7)
        return low, encode(self.note, bytes(bits))

    @classmethod
    def restore(cls, low: int, metadata: str) -> "Frontier":
        """The frontier that `snapshot` described; raises GagarError for metadata that it did not write."""
        note, bits = decode(metadata)
        finished = [low + 8 * i + j for i, byte in enumerate(bits) if byte for j in range(8) if byte >> j & 1]
        return cls(low, finished, note)


def encode(note: bytes, bits: bytes) -> str:
    """Metadata of a committed offset, at most METADATA_LIMIT bytes; never empty, as those of an offset set by hand are."""
    bits = bits.rstrip(b"\0")
    if len(note) > NOTE_LIMIT:
        raise GagarError(f"offset metadata: expected a note of at most {NOTE_LIMIT} bytes, got {len(note)}")
    text = PREFIX + base64.b64encode(len(note).to_bytes(2, "little") + note + bits).decode("ascii")
    assert len(text) <= METADATA_LIMIT, len(text)
    return text


def decode(metadata: str) -> tuple[bytes, bytes]:
    """Note and bitmap; raises GagarError: to guess here would lose or double records."""
    if not metadata:
        raise GagarError(
            "offset metadata: expected what a stage commits with an offset, got none: the offset was set by hand; "
            "what lies between would be done twice, or never: take another run.name to do it again; `gagar topics reset` "
            "moves a stage, if it can bear that, and says what follows"
        )
    try:
        payload = base64.b64decode(metadata.removeprefix(PREFIX), validate=True)
        length = int.from_bytes(payload[:2], "little")
        if not metadata.startswith(PREFIX) or len(payload) < 2 + length:
            raise ValueError("another form")
    except (binascii.Error, ValueError) as error:
        raise GagarError(
            f"offset metadata: expected {PREFIX}<base64>, got {metadata[:40]!r}; another program commits to this group"
        ) from error
    return payload[2 : 2 + length], payload[2 + length :]
