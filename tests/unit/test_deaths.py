"""A process of each kind dies at every place where it waits, from its start to the end of its work; started again, it leaves
in the log what one that was never disturbed does: each record once, the same cursor and positions."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from gagar.errors import UnavailableError
from gagar.records import RolloutRequest
from gagar.stream.handlers import Output, Transform
from gagar.stream.lanes import committing
from gagar.stream.lanes.frontier import Frontier
from gagar.stream.lanes.lane import Lane
from gagar.stream.lanes.reading import LaneReader
from gagar.stream.lanes.sourcing import SourceWork
from gagar.stream.lanes.work import DeliveryWork
from gagar.stream.spec import Stage
from gagar.stream.transport import Partition, Send
from tests.builders import make_request
from tests.contract.counting import STAGE as SOURCE
from tests.contract.counting import Counting
from tests.contract.gathering import SIZE, Gathering, request_groups, verdict
from tests.contract.gathering import STAGE as REDUCER
from tests.contract.world import (
    DEAD_LETTERS,
    FAST,
    OUTCOMES,
    REQUESTS,
    TOKENS,
    TRAJECTORIES,
    MemoryWorld,
    Process,
    make_stage,
    make_trajectory,
    read,
    write,
)
from tests.dying import Mortal, Place, deaths_at, never_waited_at, simulated
from tests.unit.test_lane import Answering

pytestmark = pytest.mark.slow

NUM_REQUESTS = 5
NUM_UNITS = 3
GROUPS = [f"t-{number:06d}" for number in range(5)]
NUM_PARTITIONS = 2
LIMITS = msgspec.structs.replace(FAST, max_units=2)
"""Several transactions in each partition."""
LIMIT_S = 60.0
"""Of simulated time."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of stage, and work for it."""

    stage: Stage
    make_handler: Callable[[], Any]
    prepare: Callable[[MemoryWorld], Any]
    num_records: int
    """Visible at the end, inputs that can be read included."""
    least: int
    """Points that there must be at the very least."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of processes warn of what they abandon."""
    caplog.set_level(logging.CRITICAL)


def to_trajectory(request: RolloutRequest) -> list[Output]:
    return [make_trajectory(request)]


async def ask(world: MemoryWorld) -> None:
    poison = Send(topic=REQUESTS.name, key=b"t-poison", value=b"\xc1")
    await write(world, [*(make_request(f"t-{number:06d}", seed=number) for number in range(NUM_REQUESTS)), poison])


async def ask_and_judge(world: MemoryWorld) -> None:
    refs = await request_groups(world, GROUPS)
    await write(world, [verdict(refs, group, index) for index in range(SIZE) for group in GROUPS])


async def nothing(world: MemoryWorld) -> None: ...


CASES = {
    "source": Case(stage=SOURCE, make_handler=lambda: Counting(NUM_UNITS), prepare=nothing, num_records=6, least=80),
    "transform": Case(
        stage=make_stage("transform"), make_handler=lambda: Transform(to_trajectory), prepare=ask, num_records=11, least=120
    ),
    "effect": Case(stage=make_stage("effect"), make_handler=Answering, prepare=ask, num_records=16, least=150),
    "reducer": Case(stage=REDUCER, make_handler=Gathering, prepare=ask_and_judge, num_records=20, least=120),
}
PATH = (Lane, LaneReader, DeliveryWork, SourceWork, committing)
ELSEWHERE = {
    # A stop, planned or by an error.
    *("Lane.drain", "SourceWork.run: self._has_lost_place()", "SourceWork._has_lost_place"),
    # Nothing is due; the group is being divided; a partition is not owned; a record is huge; records are gone.
    *("Lane.opened", "DeliveryWork.run: self._lane.opened()", "SourceWork._produce: self._lane.opened()"),
    "SourceWork._produce: bounded(self._tables.changed.wait(), self._limits.tick_s)",
    "Lane._take_over: asyncio.sleep(self._limits.backoff(1))",
    "DeliveryWork.run: self.take(raw)",
    *("LaneReader._fetch: self._skip_missing(error)", "LaneReader._skip_missing"),
}
"""Awaits that are not between the start of a take-over and the end of a commit."""


def is_done(world: MemoryWorld, stage: Stage) -> bool:
    """A source: its last cursor is committed. Others: everything read is finished, the markers at the end included."""
    offsets = world.log.group(stage.name).offsets
    if stage.kind == "source":
        home = offsets.get(Partition(stage.tables[0].name, 0))
        return home is not None and Frontier.restore(home.offset, home.metadata).note == str(NUM_UNITS).encode()
    inputs = [Partition(topic.name, number) for topic in stage.inputs for number in range(NUM_PARTITIONS)]
    ends = {at: world.log.partitions[at].last_stable for at in inputs}
    return all(end == 0 or (at in offsets and offsets[at].offset == end) for at, end in ends.items())


async def live(case: Case, world: MemoryWorld, mortal: Mortal) -> None:
    """One life of a process: to its death or to the end of the work."""
    process = Process(world, case.stage, case.make_handler(), LIMITS)
    mortal.transport = process.transport  # type: ignore[assignment]
    random.seed(0)
    async with asyncio.timeout(LIMIT_S):
        with mortal.lives(asyncio.get_running_loop()):
            running = asyncio.create_task(process.runtime.run(asyncio.Event()))
            while not mortal.is_dead and not is_done(world, case.stage):
                if running.done():
                    running.result()
                    assert is_done(world, case.stage), "the stage ended early"
                await asyncio.sleep(0.01)
        await mortal.buried()


async def outputs(world: MemoryWorld) -> list[tuple[str, ...]]:
    """Everything visible: topic, group, member; and whether what a trajectory refers to is its own."""
    tokens = {str(delivery.ref): delivery.key for delivery in await read(world, TOKENS)}
    found = []
    for topic in (REQUESTS, TOKENS, TRAJECTORIES, OUTCOMES, DEAD_LETTERS):
        for delivery in await read(world, topic):
            ref = getattr(delivery.record, "tokens", None)
            member = str(getattr(delivery.record, "sample_index", ""))
            found.append((topic.name, delivery.key, member, tokens[str(ref)] if ref else ""))
    return sorted(found)


async def end_of(case: Case, deaths: Sequence[int], last: Mortal) -> tuple[Any, Any]:
    """What is in the log after a life for each death and one, `last`, that ends its work."""
    world = MemoryWorld(NUM_PARTITIONS)
    await case.prepare(world)
    for call, count in (("answer", 2), ("lost answer", 1)):
        world.log.faults[call] = [UnavailableError(f"{call}: expected one, got none") for _ in range(count)]
    for at in deaths:
        await live(case, world, Mortal(at))
    await live(case, world, last)
    return await outputs(world), dict(world.log.group(case.stage.name).offsets)


@pytest.mark.parametrize("kind", CASES)
def test_a_process_that_dies_wherever_it_waits_loses_and_doubles_nothing(kind: str, double_every: int) -> None:
    case, undisturbed = CASES[kind], Mortal()
    with simulated() as runner:
        expected = runner.run(end_of(case, [], undisturbed))
        assert len(expected[0]) == len(set(expected[0])) == case.num_records
        assert undisturbed.num_points >= case.least
        for deaths in deaths_at(undisturbed.num_points, double_every):
            assert runner.run(end_of(case, deaths, Mortal())) == expected, f"{kind} died at points {deaths}"


def test_the_points_to_die_at_are_all_awaits_from_take_over_to_commit() -> None:
    waited_at: set[Place] = set()
    with simulated() as runner:
        for case in CASES.values():
            undisturbed = Mortal()
            runner.run(end_of(case, [], undisturbed))
            waited_at |= undisturbed.waited_at
    assert never_waited_at(PATH, waited_at, ELSEWHERE) == []
