"""The budget of bytes: portions that fit, and never nothing for ever."""

import asyncio
from collections.abc import Callable

import pytest

from gagar.stream.lanes.budget import FIRST_GUESS, Budget, Held

MIB = int(FIRST_GUESS.inputs)


class Lane:
    """Holds so much."""

    def __init__(self, inputs: int = 0, outputs: int = 0) -> None:
        self.held = Held(inputs, outputs)


async def test_a_lane_takes_half_of_the_bound_in_units_of_the_heaviest_of_late_as_soon_as_half_is_free() -> None:
    lanes = {0: Lane(), 1: Lane()}
    budget = Budget(Held(16 * MIB, 32 * MIB), lanes)
    assert await budget.portion(lambda: True) == 16
    lanes[0].held = Held(0, 16 * MIB)
    assert await budget.portion(lambda: True) == 16
    budget.note(Held(0, 2 * MIB))
    assert await budget.portion(lambda: False) == 8
    lanes[0].held = Held(0, 17 * MIB)
    asking = asyncio.create_task(budget.portion(lambda: False))
    await asyncio.sleep(0)
    assert not asking.done()
    lanes[0].held = Held(0, MIB)
    budget.changed.set()
    assert await asking == 8


async def test_inputs_fill_what_is_free_and_a_lane_without_any_gets_one() -> None:
    budget = Budget(Held(16 * MIB, 32 * MIB), {0: Lane(12 * MIB), 1: Lane(4 * MIB)})
    assert await budget.portion(lambda: True) == 1
    budget = Budget(Held(16 * MIB, 32 * MIB), {0: Lane(12 * MIB), 1: Lane(MIB)})
    assert await budget.portion(lambda: False) == 3


async def test_a_lane_without_any_is_not_kept_waiting_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagar.stream.lanes.budget.MAX_WAIT_S", 0.0)
    budget = Budget(Held(16 * MIB, 32 * MIB), {0: Lane(0, 32 * MIB), 1: Lane()})
    assert await budget.portion(lambda: True) == 1


async def test_a_lane_that_holds_something_gives_its_turn_back_and_one_that_has_become_idle_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gagar.stream.lanes.budget.MAX_WAIT_S", 0.05)
    stuck, busy = Lane(0, 20 * MIB), Lane(0, MIB)
    budget = Budget(Held(16 * MIB, 32 * MIB), {0: stuck, 1: busy, 2: Lane()})

    async def take(is_idle: Callable[[], bool]) -> int:
        async with budget.turn:
            return await budget.portion(is_idle)

    async def fail_again_and_again() -> None:
        while True:
            budget.changed.set()
            await asyncio.sleep(0.01)

    failing = asyncio.create_task(fail_again_and_again())
    assert list(await asyncio.wait_for(asyncio.gather(take(lambda: False), take(lambda: True)), 5)) == [0, 1]
    busy.held = Held(0, 0)
    assert await asyncio.wait_for(take(lambda: not busy.held.outputs), 5) == 1
    failing.cancel()


async def test_one_unit_that_is_larger_than_the_bound_passes() -> None:
    budget = Budget(Held(100, 100), {0: Lane()})
    budget.note(Held(1000, 1000))
    assert await budget.portion(lambda: True) == 1


async def test_a_heavy_unit_is_forgotten_by_and_by() -> None:
    budget = Budget(Held(16 * MIB, 16 * MIB), {0: Lane()})
    for _ in range(100):
        budget.note(Held(10, 10))
    assert await budget.portion(lambda: False) > 5_000


def test_a_budget_is_spent_when_either_part_is() -> None:
    assert Budget(Held(100, 1000), {0: Lane(60), 1: Lane(40)}).is_spent
    assert Budget(Held(1000, 100), {0: Lane(0, 60), 1: Lane(0, 40)}).is_spent
    assert not Budget(Held(101, 101), {0: Lane(60, 60), 1: Lane(40, 40)}).is_spent
