"""A stopped stage is moved with a plan that is true, and not where that can only do harm."""

from collections.abc import AsyncIterator
from typing import Any

import click
import pytest

from gagar.cli.topics.reset import Target, as_object, plan_lines, target_of
from gagar.errors import ConfigError, FencedError, UnavailableError
from gagar.records import DeadLetter, LogRef, RolloutRequest
from gagar.stream.handlers import Delivery, Transform
from gagar.stream.lanes.frontier import AT_START, Frontier
from gagar.stream.memory.transport import MemoryTransport
from gagar.stream.resets import Move, commit_moves, finished_beyond, move, moves
from gagar.stream.spec import Stage
from gagar.stream.transport import Committed, Partition
from tests.builders import make_delivery, make_request
from tests.contract.world import (
    DEAD_LETTERS,
    REQUESTS,
    TRAJECTORIES,
    MemoryWorld,
    Process,
    committed,
    make_stage,
    make_trajectory,
    read,
    write,
)
from topology.resets import EFFECTS, check_letters, check_movable, check_moves, effects_of
from topology.stages import ADVANTAGE_PUBLISHER, GATHERER, GRADER, LEARNER, ROLLOUT_WORKER, SAMPLER, STAGES, VERIFIER

AT = Partition("trajectories", 1)
REQUEST_0 = Partition("rollout-requests", 0)
OPTION = click.Option(["--to", "target"])
STAGE = make_stage("transform")


def standing(low: int, *finished: int) -> Committed:
    """A position with offsets that are finished beyond it."""
    offset, metadata = Frontier(low, finished).snapshot()
    return Committed(offset=offset, metadata=metadata)


def moved(before: Committed | None, to: int, at: Partition = AT) -> Move:
    one = move(at, before, to)
    assert one is not None
    return one


def parsed(*texts: str) -> Target:
    return target_of(click.Context(click.Command("reset")), OPTION, texts)


def test_a_move_back_counts_what_is_due_again_and_what_was_finished_beyond_is_too() -> None:
    one = moved(standing(100, 102, 103), 90)
    assert one.after == Committed(offset=90, metadata=AT_START)
    assert (one.num_again, one.num_skipped) == (12, 0)


def test_a_move_ahead_keeps_what_is_finished_beyond_and_counts_what_is_left_out() -> None:
    one = moved(standing(100, 102, 107), 105)
    assert one.after.offset == 105
    assert finished_beyond(one.after) == [107]
    assert (one.num_again, one.num_skipped) == (1, 4)


def test_an_offset_set_by_hand_or_lost_is_mended_and_one_that_fits_stays() -> None:
    assert moved(Committed(offset=7), 7).after == Committed(offset=7, metadata=AT_START)
    assert moved(None, 7).after == Committed(offset=7, metadata=AT_START)
    assert move(AT, standing(7, 9), 7) is None


@pytest.mark.parametrize(("at", "to"), [(AT, 4), (AT, 21), (Partition("trajectories", 9), 5)])
def test_a_place_that_the_log_does_not_hold_is_refused(at: Partition, to: int) -> None:
    with pytest.raises(ConfigError, match=r"^--to trajectories"):
        moves({}, {at: to}, {AT: (5, 20)})


def test_where_to_is_told_as_a_time_or_as_messages_print_places() -> None:
    assert parsed("earliest").is_earliest
    assert parsed("2026-01-31T12:00").at == 1769860800.0
    assert parsed("verdicts[3]@118", "verdicts[0]@7").places == {Partition("verdicts", 3): 118, Partition("verdicts", 0): 7}
    for wrong in (("latest",), ("earliest", "verdicts[3]@1"), ("118",)):
        with pytest.raises(click.BadParameter, match="expected earliest"):
            parsed(*wrong)


def test_it_is_said_of_every_stage_what_a_reset_does() -> None:
    assert set(EFFECTS) == {stage.name for stage in STAGES}
    for effects in EFFECTS.values():
        assert bool(effects.back) != bool(effects.refused)
        assert not effects.back or bool(effects.ahead) != bool(effects.refused_ahead)


@pytest.mark.parametrize("stage", [SAMPLER, GATHERER, LEARNER], ids=lambda stage: str(stage.name))
def test_a_stage_is_not_moved_where_that_can_only_do_harm(stage: Stage) -> None:
    with pytest.raises(ConfigError, match=f"^stage {stage.name}: expected one that can be moved, got one that cannot: "):
        check_movable(stage)


def test_a_stage_that_holds_groups_goes_back_only() -> None:
    ahead, back = moved(standing(5), 9), moved(standing(5), 1)
    for stage in (GRADER, ADVANTAGE_PUBLISHER):
        check_moves(stage, [back])
        with pytest.raises(ConfigError, match=r"trajectories\[1\] to go back from 5, or to stay, got 9: the groups between"):
            check_moves(stage, [back, ahead])
    for stage in (VERIFIER, ROLLOUT_WORKER):
        check_movable(stage)
        check_moves(stage, [back, ahead])
        assert len(effects_of(stage, [back])) < len(effects_of(stage, [back, ahead]))


async def letters(*sources: tuple[str, int]) -> AsyncIterator[Delivery[DeadLetter]]:
    for stage, offset in sources:
        source = LogRef(topic="groups", partition=1, offset=offset)
        yield make_delivery(DeadLetter(stage=stage, source=source, error="e", key=b"k", value=b"v"), "dead-letters")


async def test_a_group_that_was_dead_lettered_is_not_done_again_after_its_end() -> None:
    back = [moved(standing(9), 3, Partition("groups", 1))]
    with pytest.raises(ConfigError, match=r"got groups\[1\]@5: .* go to groups\[1\]@6 or beyond"):
        await check_letters(GRADER, back, letters(("verifier", 4), ("grader", 5)))
    await check_letters(GRADER, back, letters(("grader", 2), ("verifier", 4)))
    await check_letters(VERIFIER, back, letters(("verifier", 4)))


def test_the_plan_tells_every_partition_and_what_follows() -> None:
    planned = [moved(standing(5), 1), moved(None, 3, Partition("trajectories", 2))]
    lines = plan_lines(VERIFIER, planned)
    assert lines[:2] == [
        "trajectories[1]: stands at 5, goes to 1, at most 4 records again",
        "trajectories[2]: has no offset: it was lost, goes to 3",
    ]
    assert all(line.startswith("- ") for line in lines[2:])
    told: dict[str, Any] = as_object(VERIFIER, planned, is_done=True)
    assert told["partitions"][0] == {"partition": "trajectories[1]", "from": 5, "to": 1, "again": 4, "skipped": 0}
    assert plan_lines(VERIFIER, []) == ["stage verifier: nothing to move, it stands there"]


class Counted:
    """A transform that tells which requests it was given."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, request: RolloutRequest) -> list[Any]:
        self.seen.append(request.group_id)
        return [make_trajectory(request)]


async def run_through(world: MemoryWorld, count: int) -> list[str]:
    """What a process of the stage is given until it has finished so many."""
    counted = Counted()
    async with Process(world, STAGE, Transform(counted)) as process:
        await process.until_finished(count)
    return counted.seen


async def stand(world: MemoryWorld) -> dict[Partition, Committed]:
    return await committed(world, STAGE)


async def test_a_stage_that_was_moved_back_does_again_what_lies_after_and_no_more() -> None:
    world = MemoryWorld()
    await write(world, [make_request(f"t-{number:06d}") for number in range(12)])
    await run_through(world, 12)
    place = (await read(world, REQUESTS))[-1].ref
    at, before = Partition(place.topic, place.partition), await stand(world)
    planned = [moved(before[at], place.offset, at)]
    await commit_moves(world.transport(), STAGE, DEAD_LETTERS, planned, lambda: stand(world))
    assert (await stand(world))[at].offset == place.offset
    again = await run_through(world, 1)
    assert again == [delivery.key for delivery in await read(world, REQUESTS) if delivery.ref == place]
    assert len(await read(world, TRAJECTORIES)) == 13


async def test_a_plan_that_is_no_longer_true_moves_nothing() -> None:
    world = MemoryWorld()
    await write(world, [make_request(f"t-{number:06d}") for number in range(12)])
    planned = [moved(standing(3), 0, REQUEST_0)]
    with pytest.raises(UnavailableError, match=r"expected rollout-requests\[0\] at 3, as in the plan, got 0; it has gone on"):
        await commit_moves(world.transport(), STAGE, DEAD_LETTERS, planned, lambda: stand(world))


async def test_a_stage_that_starts_meanwhile_keeps_its_place() -> None:
    world = MemoryWorld()
    await write(world, [make_request(f"t-{number:06d}") for number in range(12)])
    await run_through(world, 12)
    before = await stand(world)

    async def stand_and_start() -> dict[Partition, Committed]:
        await MemoryTransport(world.log).start_producer("under-test.0", STAGE.outputs)
        return before

    with pytest.raises(FencedError, match="expected it to stay stopped, got it started meanwhile"):
        await commit_moves(world.transport(), STAGE, DEAD_LETTERS, [moved(before[REQUEST_0], 0, REQUEST_0)], stand_and_start)
    assert await stand(world) == before
