"""The budget of bytes: portions that fit, and never nothing for ever."""

from gagar.stream.budget import FIRST_GUESS, Budget, Held

MIB = int(FIRST_GUESS.inputs)


class Lane:
    """Holds so much."""

    def __init__(self, inputs: int = 0, outputs: int = 0) -> None:
        self.held = Held(inputs, outputs)


def test_room_is_what_is_free_in_units_of_the_heaviest_of_late_shared_by_the_lanes() -> None:
    lanes = {0: Lane(), 1: Lane()}
    budget = Budget(Held(16 * MIB, 32 * MIB), lanes)
    assert budget.room() == 8
    lanes[0].held = Held(8 * MIB, 0)
    assert budget.room() == 4
    lanes[0].held = Held(0, 28 * MIB)
    assert budget.room() == 2
    budget.note(Held(0, 2 * MIB))
    assert budget.room() == 1


def test_a_heavy_unit_is_forgotten_by_and_by() -> None:
    budget = Budget(Held(16 * MIB, 16 * MIB), {0: Lane()})
    for _ in range(100):
        budget.note(Held(10, 10))
    assert budget.room() > 10_000


def test_a_budget_is_spent_when_either_part_is() -> None:
    assert Budget(Held(100, 1000), {0: Lane(60), 1: Lane(40)}).is_spent
    assert Budget(Held(100, 1000), {0: Lane(60), 1: Lane(40)}).room() == 0
    assert Budget(Held(1000, 100), {0: Lane(0, 60), 1: Lane(0, 40)}).is_spent
    assert not Budget(Held(101, 101), {0: Lane(60, 60), 1: Lane(40, 40)}).is_spent
