"""The frontier: never loses, never doubles, always fits."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gagar.errors import GagarError
from gagar.stream.frontier import METADATA_LIMIT, NOTE_LIMIT, SPAN_LIMIT, Frontier, decode, encode


class FrontierMachine(RuleBasedStateMachine):
    """A log with gaps is read, finished in any order, committed, and read again after crashes.

    `done` is the truth: the outputs that are visible. A crash falls back to the last commit, whose unfinished offsets must be
    exactly those that are not in `done`.
    """

    @initialize(gaps=st.lists(st.booleans(), min_size=1, max_size=200), start=st.integers(0, 10**12))
    def start_log(self, gaps: list[bool], start: int) -> None:
        self.records = [start + i for i, is_gap in enumerate(gaps) if not is_gap]
        self.end = start + len(gaps)
        self.committed = (start, "")
        self.done: set[int] = set()
        self.crash()

    @rule()
    def crash(self) -> None:
        self.frontier = Frontier.restore(*self.committed)
        self.to_read = [offset for offset in self.records if offset >= self.committed[0]]
        self.in_work: list[int] = []

    @precondition(lambda self: self.to_read)
    @rule(count=st.integers(1, 40))
    def read(self, count: int) -> None:
        for _ in range(min(count, len(self.to_read))):
            offset = self.to_read.pop(0)
            is_due = self.frontier.deliver(offset)
            assert is_due == (offset not in self.done)
            if is_due:
                self.in_work.append(offset)

    @precondition(lambda self: not self.to_read)
    @rule()
    def pass_markers(self) -> None:
        self.frontier.advance(self.end)

    @precondition(lambda self: self.in_work)
    @rule(data=st.data(), is_lost=st.booleans())
    def commit_some(self, data: st.DataObject, is_lost: bool) -> None:
        units = data.draw(st.lists(st.sampled_from(self.in_work), min_size=1, unique=True))
        snapshot = self.frontier.snapshot(units)
        if is_lost:
            return self.crash()
        self.committed = snapshot
        self.done.update(units)
        self.frontier.finish(units)
        self.in_work = [offset for offset in self.in_work if offset not in units]
        return None

    @rule()
    def commit_position_only(self) -> None:
        self.committed = self.frontier.snapshot()

    @invariant()
    def agrees_with_the_truth(self) -> None:
        assert all(self.frontier.is_finished(offset) == (offset in self.done) for offset in self.records)
        assert self.frontier.num_pending == len(self.in_work)
        assert self.frontier.low == min([*self.in_work, self.frontier.next])

    @invariant()
    def committed_loses_and_doubles_nothing(self) -> None:
        restored = Frontier.restore(*self.committed)
        due = {offset for offset in self.records if not restored.is_finished(offset)}
        assert due == set(self.records) - self.done
        assert len(self.committed[1].encode()) <= METADATA_LIMIT


TestFrontierMachine = FrontierMachine.TestCase
TestFrontierMachine.settings = settings(max_examples=60, stateful_step_count=40)


def test_the_longest_span_with_the_longest_note_fits_the_brokers_limit() -> None:
    frontier = Frontier(5, note=b"n" * NOTE_LIMIT)
    for offset in range(5, 5 + SPAN_LIMIT):
        frontier.deliver(offset)
    finished = range(6, 5 + SPAN_LIMIT)
    low, metadata = frontier.snapshot(finished)
    assert low == 5
    assert len(metadata) <= METADATA_LIMIT
    restored = Frontier.restore(low, metadata)
    assert restored.note == b"n" * NOTE_LIMIT
    assert not restored.is_finished(5)
    assert all(restored.is_finished(offset) for offset in finished)


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
    assert frontier.snapshot() == (2, "")


@pytest.mark.parametrize("metadata", ["x", "g2:AAA=", "g1:!", "g1:", "g1://8=", "g1:A"])
def test_foreign_metadata_is_an_error_and_not_a_guess(metadata: str) -> None:
    with pytest.raises(GagarError, match="another program commits to this group"):
        decode(metadata)


def test_a_note_above_its_limit_is_refused_before_the_broker_sees_it() -> None:
    with pytest.raises(GagarError, match="at most 1000 bytes, got 1001"):
        encode(b"n" * (NOTE_LIMIT + 1), b"")


def test_a_note_alone_survives() -> None:
    assert decode(encode(b"cursor", b"")) == (b"cursor", b"")
