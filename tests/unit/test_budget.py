"""The budget of bytes: portions that fit, and never nothing for ever."""

from gagar.stream.budget import FIRST_GUESS_BYTES, Budget


class Held:
    """A lane that holds so much."""

    def __init__(self, num_bytes: int = 0) -> None:
        self.num_bytes = num_bytes


def test_room_is_what_is_free_in_units_of_the_heaviest_of_late_shared_by_the_lanes() -> None:
    lanes = {0: Held(), 1: Held()}
    budget = Budget(16 * FIRST_GUESS_BYTES, lanes)
    assert budget.room() == 8
    lanes[0].num_bytes = 8 * FIRST_GUESS_BYTES
    assert budget.room() == 4
    budget.note(4 * FIRST_GUESS_BYTES)
    assert budget.room() == 1


def test_a_heavy_unit_is_forgotten_by_and_by() -> None:
    budget = Budget(16 * FIRST_GUESS_BYTES, {0: Held()})
    for _ in range(100):
        budget.note(10)
    assert budget.room() > 10_000


def test_a_spent_budget_has_no_room() -> None:
    budget = Budget(100, {0: Held(60), 1: Held(40)})
    assert budget.is_spent
    assert budget.room() == 0
    assert not Budget(101, {0: Held(60), 1: Held(40)}).is_spent
