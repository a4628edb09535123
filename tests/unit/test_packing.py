"""Packing: every trajectory once, ranks alike, micro-batches within their budget."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gagar.training.packing import balance, micro_batches, pack

lengths_of = st.lists(st.integers(1, 200), max_size=40)


@given(lengths_of, st.integers(1, 5))
def test_every_trajectory_has_one_rank_and_ranks_differ_by_the_longest_at_most(lengths: list[int], num_ranks: int) -> None:
    owned = balance(lengths, num_ranks)
    assert sorted(index for mine in owned for index in mine) == list(range(len(lengths)))
    totals = [sum(lengths[index] for index in mine) for mine in owned]
    assert max(totals) - min(totals) <= max(lengths, default=0)


def test_what_ranks_hold_already_counts() -> None:
    assert balance([10, 10], 2, loads=[25, 0]) == [[], [0, 1]]


@given(lengths_of, st.integers(1, 500))
def test_a_padded_micro_batch_fits_the_budget_or_is_one_long_trajectory(lengths: list[int], budget: int) -> None:
    batches = micro_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget


@given(lengths_of, st.integers(1, 500))
def test_micro_batches_hold_neighbours_in_length(lengths: list[int], budget: int) -> None:
    batches = micro_batches(lengths, budget)
    for longer, shorter in pairwise(batches):
        assert min(lengths[index] for index in longer) >= max(lengths[index] for index in shorter)


@given(lengths_of, st.integers(1, 5), st.integers(1, 500))
def test_all_ranks_have_equally_many_micro_batches_of_their_own_trajectories(
    lengths: list[int], num_ranks: int, budget: int
) -> None:
    owned = balance(lengths, num_ranks)
    packed = pack(owned, lengths, budget)
    assert len({len(batches) for batches in packed}) == 1
    for mine, batches in zip(owned, packed, strict=True):
        assert sorted(index for batch in batches for index in batch) == sorted(mine)


def test_a_rank_without_work_gets_empty_micro_batches() -> None:
    assert pack([[0, 1], []], [6, 6], 6) == [[[0], [1]], [[], []]]


@given(lengths_of, st.integers(1, 5), st.integers(1, 500))
def test_the_same_lengths_give_the_same_plan(lengths: list[int], num_ranks: int, budget: int) -> None:
    first, second = (pack(balance(list(lengths), num_ranks), list(lengths), budget) for _ in range(2))
    assert first == second
