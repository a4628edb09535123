"""The gatherer in its lane: whatever comes in whatever order, restarted at any point, a group ends once and as it should."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gagar.groups.gathering import Gather
from gagar.records import Group, Outcome, RolloutRequest, Verdict, VerdictStatus, decode, encode
from gagar.stream.lanes.context import StageContext
from gagar.stream.lanes.frontier import AT_START, Frontier
from gagar.stream.lanes.reducing import ReducerWork, StreamTime
from gagar.stream.lanes.units import Spot, Unit, UnitQueue
from gagar.stream.limits import RuntimeLimits
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.transport import Partition, RawRecord
from tests.builders import make_ref, make_request, make_verdict
from topology import topics
from topology.stages import GATHERER

GRACE_S = 30.0
REQUESTS, VERDICTS = (Partition(topic.name, 0) for topic in (topics.ROLLOUT_REQUESTS, topics.VERDICTS))
STATUSES: tuple[VerdictStatus, ...] = ("passed", "failed", "invalid")
Log = list[RawRecord | None]
"""Records by offset, and the markers between them."""


class ModelLane:
    """A lane in small: reads two logs, keeps a frontier of each, and holds what is finished."""

    is_open = True

    def __init__(
        self, logs: dict[Partition, Log], committed: dict[Partition, tuple[int, str]], wall: Callable[[], float]
    ) -> None:
        self.logs = logs
        self.queue = UnitQueue()
        context = StageContext.of(GATHERER, MemoryTransport(MemoryLog([])), topics.DEAD_LETTERS, RuntimeLimits(), {})
        self.work = ReducerWork(self, Gather(GRACE_S), context, StreamTime(wall))
        self.take_over(committed)

    def take_over(self, committed: dict[Partition, tuple[int, str]]) -> None:
        """As after the loss of a producer: nothing that is in work or waits outlives it."""
        self.queue.drop(lambda unit: True)
        self.work.abandon(lambda spot: True)
        self.frontiers = {at: Frontier.restore(*committed[at]) for at in self.logs}

    async def opened(self) -> bool:
        return True

    def finish(self, unit: Unit) -> None:
        self.queue.put(unit)

    def is_finished(self, spot: Spot) -> bool:
        return spot in self.queue or self.frontiers[spot.at].is_finished(spot.offset)

    def lagging(self) -> Iterable[Partition]:
        return [at for at, log in self.logs.items() if self.frontiers[at].next < len(log)]

    def fail(self, error: BaseException) -> None:
        raise error

    def read(self, at: Partition, count: int) -> None:
        frontier, log = self.frontiers[at], self.logs[at]
        for offset in range(frontier.next, min(frontier.next + count, len(log))):
            raw = log[offset]
            if raw is not None and frontier.deliver(offset):
                with pytest.raises(StopIteration):  # it never waits: records are small
                    self.work.take(raw).send(None)
            frontier.advance(offset + 1)

    def snapshots(self, units: Iterable[Unit]) -> dict[Partition, tuple[int, str]]:
        spots = [spot for unit in units for spot in unit.inputs]
        return {at: f.snapshot([spot.offset for spot in spots if spot.at == at]) for at, f in self.frontiers.items()}

    def done(self, units: Iterable[Unit]) -> None:
        for spot in [spot for unit in units for spot in unit.inputs]:
            self.frontiers[spot.at].finish([spot.offset])
        self.queue.done()


class Gathering(RuleBasedStateMachine):
    """`visible` is the truth: the ends that have been committed."""

    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.WARNING)  # of late members and doubles

    @initialize()
    def begin(self) -> None:
        self.wall = 1000.0
        self.logs: dict[Partition, Log] = {REQUESTS: [], VERDICTS: []}
        self.committed = dict.fromkeys(self.logs, (0, AT_START))
        self.visible: list[Group | Outcome] = []
        self.sizes: dict[str, int] = {}
        self.due: dict[str, float] = {}
        self.requests: dict[tuple[str, int], int] = {}
        """Where the request of an attempt lies."""
        self.verdicts: dict[tuple[str, int], tuple[float, VerdictStatus]] = {}
        """When the first verdict of an attempt was written, and what it was."""
        self.crash()

    @rule()
    def crash(self) -> None:
        self.lane = ModelLane(self.logs, self.committed, lambda: self.wall)

    @rule()
    def lose_the_producer(self) -> None:
        self.lane.take_over(self.committed)

    @rule(seconds=st.sampled_from([1.0, 40.0, 300.0]), is_up=st.booleans())
    def pass_time(self, seconds: float, is_up: bool) -> None:
        """While the stage looks at the clock, or is down."""
        self.wall += seconds
        if is_up:
            self.lane.work.tick()

    @rule(size=st.integers(1, 4), deadline_s=st.sampled_from([0.0, 20.0, 100.0]), is_evaluation=st.booleans())
    def request(self, size: int, deadline_s: float, is_evaluation: bool) -> None:
        name = f"{'e-000000' if is_evaluation else 't'}-{len(self.sizes):06d}"
        self.sizes[name], self.due[name] = size, self.wall + deadline_s + GRACE_S
        for index in range(size):
            self.requests[name, index] = len(self.logs[REQUESTS])
            self.write(REQUESTS, make_request(name, index, group_size=size, deadline_s=deadline_s))
        self.logs[REQUESTS].append(None)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.integers(1, 4), status=st.sampled_from(STATUSES))
    def judge(self, data: st.DataObject, count: int, status: VerdictStatus) -> None:
        """Verdicts of attempts that may have some already, of groups that may have ended."""
        attempts = sorted(self.requests)
        start = data.draw(st.integers(0, len(attempts) - 1))
        for place, (name, index) in enumerate(attempts[start : start + count]):
            what = STATUSES[(STATUSES.index(status) + place) % 3]
            self.verdicts.setdefault((name, index), (self.wall, what))
            ref = make_ref(REQUESTS.topic, self.requests[name, index])
            self.write(VERDICTS, make_verdict(name, index, what, request=ref))
        self.logs[VERDICTS].append(None)

    def write(self, at: Partition, record: RolloutRequest | Verdict) -> None:
        raw = RawRecord(at=at, offset=len(self.logs[at]), key=record.group_id.encode(), value=encode(record), time=self.wall)
        self.logs[at].append(raw)

    @rule(at=st.sampled_from([REQUESTS, VERDICTS]), count=st.sampled_from([1, 5, 100, 100]))
    def read(self, at: Partition, count: int) -> None:
        self.lane.read(at, count)
        self.lane.work.tick()

    @rule()
    def read_all(self) -> None:
        for at in self.logs:
            self.lane.read(at, len(self.logs[at]))
        self.lane.work.tick()

    @precondition(lambda self: len(self.lane.queue) > 0)
    @rule(count=st.sampled_from([1, 2, 100]), answer=st.sampled_from(["committed", "committed", "aborted", "unanswered"]))
    def commit(self, count: int, answer: str) -> None:
        units = self.lane.queue.take(count, 1 << 30)
        snapshots = self.lane.snapshots(units)
        if answer != "aborted":
            self.committed = snapshots
            self.visible += [end for unit in units for end in ends_of(unit)]
        if answer == "committed":
            self.lane.done(units)
        else:
            self.lane.queue.give_back()
            self.lane.take_over(self.committed)

    @invariant()
    def no_group_ends_twice_and_none_loses_what_came_in_time(self) -> None:
        assert max(Counter(end.group_id for end in self.visible).values(), default=0) <= 1
        for end in self.visible:
            self.check(end)

    def check(self, end: Group | Outcome) -> None:
        """All verdicts written before the group was due count, whenever they were read; so do later ones that were met."""
        name, size = end.group_id, self.sizes[end.group_id]
        first = {index: self.verdicts[name, index] for index in range(size) if (name, index) in self.verdicts}
        on_time = [status for at, status in first.values() if at < self.due[name]]
        if len(on_time) == size:
            assert kind_of(end) == expected_kind(name, on_time)
        if isinstance(end, Group):
            assert size - end.num_missing >= len(on_time)
            assert all(first[member.sample_index][1] == member.status for member in end.members)
        else:
            assert end.num_valid >= sum(status != "invalid" for status in on_time)
            assert end.reason != "lost" or not on_time

    def teardown(self) -> None:
        """However it stands: with time everything ends, and nothing is left unfinished."""
        logging.disable(logging.NOTSET)
        if not hasattr(self, "lane"):
            return
        for _ in range(3):
            self.wall += 10_000.0
            self.read_all()
            while len(self.lane.queue):
                self.commit(1 << 30, "committed")
            self.no_group_ends_twice_and_none_loses_what_came_in_time()
        assert {end.group_id for end in self.visible} == set(self.sizes)
        assert self.lane.snapshots([]) == {at: (len(log), AT_START) for at, log in self.logs.items()}


def ends_of(unit: Unit) -> Iterator[Group | Outcome]:
    """The outputs of a unit; that of a late one has none."""
    for output in unit.outputs:
        send: Any = output
        yield decode(Group, send.value) if send.topic == topics.GROUPS.name else decode(Outcome, send.value)


def kind_of(end: Group | Outcome) -> str:
    return "mixed" if isinstance(end, Group) else end.reason or end.kind


def expected_kind(name: str, statuses: list[VerdictStatus]) -> str:
    """How a group of which every verdict came in time ends, by definition."""
    valid = [status for status in statuses if status != "invalid"]
    if name.startswith("e"):
        return "evaluated" if valid else "too_few_valid"
    if len(valid) < 2:
        return "too_few_valid"
    return f"all_{valid[0]}" if len(set(valid)) == 1 else "mixed"


TestGathering = Gathering.TestCase
TestGathering.settings = settings(stateful_step_count=40)


@pytest.mark.parametrize("has_crashed", [True, False])
def test_a_group_that_was_complete_in_time_is_so_again_when_its_commit_failed_long_after(has_crashed: bool) -> None:
    """Its requests are read again before its verdicts; meanwhile it does not expire by the clock of the first reading."""
    life: Any = Gathering()
    life.begin()
    life.request(2, 20.0, False)
    for index, status in enumerate(STATUSES[:2]):
        life.verdicts["t-000000", index] = (life.wall, status)
        life.write(VERDICTS, make_verdict("t-000000", index, status, request=make_ref(REQUESTS.topic, index)))
    life.read_all()
    life.pass_time(300.0, True)
    life.commit(1, "aborted")
    if has_crashed:
        life.crash()
    life.read(REQUESTS, 100)
    assert len(life.lane.queue) == 0
    life.read_all()
    life.commit(1, "committed")
    assert [kind_of(end) for end in life.visible] == ["mixed"]
    life.teardown()
