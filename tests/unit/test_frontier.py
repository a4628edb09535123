"""The frontier: never loses, never doubles, always fits."""

import copy
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gagar.errors import GagarError
from gagar.stream.lanes import frontier as frontier_module
from gagar.stream.lanes.frontier import AT_START, METADATA_LIMIT, NOTE_LIMIT, SPAN_LIMIT, Frontier, decode, encode

SMALL_SPAN = 48
"""Offsets of a span in the state machine, so that it is often full."""

WHICH: list[Callable[[int], bool]] = [
    lambda place: False,
    lambda place: True,
    lambda place: place > 0,
    lambda place: place == 1,
    lambda place: place % 2 == 1,
    lambda place: place % 7 == 3,
]
"""Which of the units in work, by their place among them, end in a transaction."""


class Attempt(NamedTuple):
    """A transaction whose outcome is not known yet: what it would commit, and what it would make visible."""

    snapshot: tuple[int, str]
    units: frozenset[int]


class FrontierMachine(RuleBasedStateMachine):
    """A log with gaps is read, finished in any order, committed, and read again after crashes and revocations.

    `done` is the truth: the outputs that are visible. Whoever comes next starts from the last commit, whose unfinished offsets
    must be exactly those that are not in `done`. Reading goes on while a transaction is under way; several of one producer may
    be, each of which holds what those before it finish; at the first that fails, its successors fail too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limit = mock.patch.object(frontier_module, "SPAN_LIMIT", SMALL_SPAN)
        self.limit.start()

    def teardown(self) -> None:
        self.limit.stop()

    @initialize(bits=st.binary(min_size=1, max_size=25), is_dense=st.booleans(), start=st.integers(0, 10**12))
    def start_log(self, bits: bytes, is_dense: bool, start: int) -> None:
        size = 8 * len(bits)
        self.records = [start + i for i in range(size) if is_dense or bits[i >> 3] >> (i & 7) & 1]
        self.end = start + size
        note = bits[:3]
        self.note = note
        self.committed = Frontier(start, note=note).snapshot()
        self.done: set[int] = set()
        self.crash()

    @rule()
    def crash(self) -> None:
        """Everything that was not committed is lost: also by a revocation after which another process reads on."""
        self.frontier = Frontier.restore(*self.committed)
        self.to_read = [offset for offset in self.records if offset >= self.committed[0]]
        self.in_work: list[int] = []
        self.attempts: list[Attempt] = []

    @rule()
    def take_over_with_work_kept(self) -> None:
        """As a lane does whose producer was lost: what turned out to be committed is dropped, the rest counts as delivered."""
        position = self.frontier.next
        self.frontier = Frontier.restore(*self.committed)
        self.attempts = []
        self.in_work = sorted(offset for offset in self.in_work if not self.frontier.is_finished(offset))
        for offset in self.in_work:
            assert self.frontier.deliver(offset)
        self.frontier.advance(position)
        assert self.frontier.next == max(position, self.committed[0])

    @precondition(lambda self: self.to_read)
    @rule(count=st.integers(1, 80))
    def read(self, count: int) -> None:
        for _ in range(min(count, len(self.to_read))):
            offset = self.to_read[0]
            if not self.frontier.has_room(offset):
                assert offset - min(self.in_work) >= SMALL_SPAN
                with pytest.raises(ValueError, match="got a longer span"):
                    self.frontier.deliver(offset)
                return
            assert not self.in_work or offset - min(self.in_work) < SMALL_SPAN
            del self.to_read[0]
            is_due = self.frontier.deliver(offset)
            assert is_due == (offset not in self.done)
            if is_due:
                self.in_work.append(offset)

    @precondition(lambda self: not self.to_read)
    @rule()
    def pass_markers(self) -> None:
        self.frontier.advance(self.end)

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """A transaction: some units that are in none yet, or none (the position alone)."""
        taken = frozenset().union(*(attempt.units for attempt in self.attempts))
        free = [offset for offset in self.in_work if offset not in taken]
        which = data.draw(st.sampled_from(WHICH))
        units = frozenset(offset for place, offset in enumerate(free) if which(place))
        self.attempts.append(Attempt(self.frontier.snapshot(taken | units), units))

    @precondition(lambda self: self.attempts)
    @rule(is_answered=st.sampled_from([True, True, True, False]))
    def commit(self, is_answered: bool) -> None:
        """The oldest transaction is committed, whether its producer hears of it or not."""
        attempt = self.attempts.pop(0)
        self.committed = attempt.snapshot
        self.done |= attempt.units
        if is_answered:
            self.frontier.finish(attempt.units)
            self.in_work = [offset for offset in self.in_work if offset not in attempt.units]
        else:
            self.take_over_with_work_kept()

    @precondition(lambda self: self.attempts)
    @rule()
    def fail(self) -> None:
        """The oldest transaction is aborted, and with it those behind: their units wait for other ones."""
        self.attempts = []

    @invariant()
    def agrees_with_the_truth(self) -> None:
        assert all(self.frontier.is_finished(offset) == (offset in self.done) for offset in self.records)
        assert self.frontier.low == min([*self.in_work, self.frontier.next])
        assert self.frontier.note == self.note

    @invariant()
    def committed_loses_and_doubles_nothing(self) -> None:
        restored = Frontier.restore(*self.committed)
        due = {offset for offset in self.records if not restored.is_finished(offset)}
        assert due == set(self.records) - self.done
        assert restored.note == self.note

    @invariant()
    def everything_ends(self) -> None:
        """From any state: read and finish all, and nothing but the end is left to say."""
        last = copy.deepcopy(self.frontier)
        in_work, to_read = set(self.in_work), list(self.to_read)
        while in_work or to_read:
            last.finish(in_work)
            in_work.clear()
            while to_read and last.has_room(to_read[0]):
                offset = to_read.pop(0)
                in_work |= {offset} if last.deliver(offset) else set()
        last.advance(self.end)
        assert last.snapshot() == (self.end, Frontier(note=self.note).snapshot()[1])


TestFrontierMachine = FrontierMachine.TestCase
TestFrontierMachine.settings = settings(stateful_step_count=40)


PATTERNS: dict[str, Callable[[int], bool]] = {
    "all but the first": lambda offset: offset > 0,
    "the last only": lambda offset: offset == SPAN_LIMIT - 1,
    "every second": lambda offset: offset % 2 == 1,
    "every eighth": lambda offset: offset % 8 == 7,
    "none": lambda offset: False,
    "chance": lambda offset: offset > 0 and (offset * 2654435761 >> 7) % 3 == 0,
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("note", [b"", b"\xff" * NOTE_LIMIT])
def test_the_longest_span_fits_the_brokers_limit_whatever_is_finished(pattern: str, note: bytes) -> None:
    """Also half of it before a restart, so that restored and read offsets share the bitmap."""
    start, finished = 10**15, {offset for offset in range(SPAN_LIMIT) if PATTERNS[pattern](offset)}
    frontier = Frontier(start, note=note)
    for offset in range(SPAN_LIMIT):
        assert frontier.deliver(start + offset)
    assert not frontier.has_room(start + SPAN_LIMIT)
    low, metadata = frontier.snapshot([start + offset for offset in finished])
    assert (low, len(metadata.encode()) <= METADATA_LIMIT) == (start, True)
    restored = Frontier.restore(low, metadata)
    assert restored.note == note
    due = [offset for offset in range(SPAN_LIMIT) if restored.deliver(start + offset)]
    assert due == [offset for offset in range(SPAN_LIMIT) if offset not in finished]
    assert restored.snapshot() == (low, metadata)
    half = Frontier.restore(low, metadata)
    for offset in range(SPAN_LIMIT // 2):
        half.deliver(start + offset)
    assert half.snapshot() == (low, metadata)


def test_a_full_span_refuses_and_recovers_over_restarts() -> None:
    """The first offset stays in work for long; the reader meets the limit, restarts there, and goes on when it ends."""
    frontier = Frontier(0)
    for offset in range(SPAN_LIMIT):
        frontier.deliver(offset)
    committed = frontier.snapshot(range(1, SPAN_LIMIT))
    frontier = Frontier.restore(*committed)
    assert [offset for offset in range(SPAN_LIMIT) if frontier.deliver(offset)] == [0]
    assert not frontier.has_room(SPAN_LIMIT)
    committed = frontier.snapshot([0])
    assert committed == (SPAN_LIMIT, AT_START)
    frontier.finish([0])
    assert frontier.has_room(10 * SPAN_LIMIT)


def test_a_span_has_no_room_past_its_limit_until_the_watermark_moves() -> None:
    frontier = Frontier(0)
    frontier.deliver(0)
    frontier.deliver(1)
    assert frontier.has_room(SPAN_LIMIT - 1)
    assert not frontier.has_room(SPAN_LIMIT)
    with pytest.raises(ValueError, match="got a longer span"):
        frontier.deliver(SPAN_LIMIT)
    frontier.finish([0])
    assert frontier.has_room(SPAN_LIMIT)
    frontier.finish([1])
    assert frontier.has_room(10 * SPAN_LIMIT)


def test_an_offset_is_delivered_once() -> None:
    frontier = Frontier(3)
    assert frontier.deliver(3)
    with pytest.raises(ValueError, match="expected 4 or more"):
        frontier.deliver(3)


def test_markers_at_the_end_let_the_watermark_reach_the_end() -> None:
    frontier = Frontier(0)
    frontier.deliver(0)
    frontier.finish([0])
    assert frontier.low == 1
    frontier.advance(2)
    assert frontier.snapshot() == (2, AT_START)


@pytest.mark.parametrize("metadata", ["x", "g2:AAA=", "g1:!", "g1:", "g1://8=", "g1:A"])
def test_foreign_metadata_is_an_error_and_not_a_guess(metadata: str) -> None:
    with pytest.raises(GagarError, match="another program commits to this group"):
        decode(metadata)


def test_an_offset_that_was_set_by_hand_is_an_error_and_not_a_position() -> None:
    """Tools that set offsets leave the metadata empty; what is committed here never is."""
    with pytest.raises(GagarError, match="got none: the offset was set by hand"):
        decode("")
    assert encode(b"", b"") == Frontier(7).snapshot()[1] == AT_START
    assert decode(AT_START) == (b"", b"")


def test_a_note_above_its_limit_is_refused_before_the_broker_sees_it() -> None:
    with pytest.raises(GagarError, match="at most 1000 bytes, got 1001"):
        encode(b"n" * (NOTE_LIMIT + 1), b"")


def test_a_note_alone_survives() -> None:
    assert decode(encode(b"cursor", b"")) == (b"cursor", b"")
