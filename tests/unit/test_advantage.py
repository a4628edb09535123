"""The redistribution's laws, and its published check values."""

import math
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gagar.groups.advantages import Redistribution, grpo_advantages, redistribute, tier_weights
from gagar.records import Grade

Members = list[tuple[bool, float]]
"""Whether a member passed, and its factor."""

factors = st.one_of(st.sampled_from([1.0, 0.9, 0.85, 0.625, 0.4, 0.2]), st.floats(0.01, 1.0))
groups = st.lists(st.tuples(st.booleans(), factors), min_size=2, max_size=24)
MAX_RESCALE = 1.5
NO_CAP = 1e9


def plain(members: Members) -> list[float]:
    return grpo_advantages([1.0 if passed else 0.0 for passed, _ in members])


def redistributed(members: Members, max_rescale: float) -> Redistribution:
    return redistribute(plain(members), [p for p, _ in members], [f for _, f in members], max_rescale)


def passing_sum(members: Members, advantages: list[float]) -> float:
    return math.fsum(a for (passed, _), a in zip(members, advantages, strict=True) if passed)


def first_passing(num_passing: int, weights: list[float]) -> Members:
    return [(True, f) for f in weights] + [(False, 1.0)] * (16 - num_passing)


def test_three_passing_of_sixteen_give_the_published_values() -> None:
    members = first_passing(3, [1.0, 0.625, 0.625])
    result = redistributed(members, MAX_RESCALE)
    assert plain(members)[0] == pytest.approx(0.8125, abs=5e-6)
    assert result.rescale == pytest.approx(1.33333, abs=5e-6)
    assert max(result.advantages) == pytest.approx(1.08333, abs=5e-6)
    assert not result.was_capped


def test_two_passing_of_sixteen_meet_the_cap_with_the_published_values() -> None:
    members = first_passing(2, [1.0, 0.2])
    result = redistributed(members, MAX_RESCALE)
    assert plain(members)[0] == pytest.approx(0.875, abs=5e-6)
    assert result.rescale == 1.5
    assert max(result.advantages) == pytest.approx(1.3234375, abs=5e-8)
    assert result.was_capped


def test_grpo_advantages_are_rewards_less_their_mean_and_not_standardised() -> None:
    assert grpo_advantages([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]


def test_a_group_with_one_valid_member_gets_zero() -> None:
    assert grpo_advantages([1.0]) == [0.0]
    assert grpo_advantages([]) == []


@given(groups)
def test_the_passing_sum_is_preserved_while_uncapped(members: Members) -> None:
    result = redistributed(members, NO_CAP)
    expected = passing_sum(members, plain(members))
    assert not result.was_capped
    assert passing_sum(members, result.advantages) == pytest.approx(expected, rel=1e-13, abs=1e-13)


@given(groups)
def test_failing_members_are_unchanged_while_uncapped(members: Members) -> None:
    result = redistributed(members, MAX_RESCALE)
    assume(not result.was_capped)
    for (passed, _), before, after in zip(members, plain(members), result.advantages, strict=True):
        assert passed or after == before


@given(groups)
def test_the_mean_is_zero_and_the_factor_bounded_when_the_cap_binds(members: Members) -> None:
    result = redistributed(members, MAX_RESCALE)
    assert result.rescale <= MAX_RESCALE
    assert math.fsum(result.advantages) == pytest.approx(0.0, abs=1e-12)
    assert result.was_capped or result.shift == 0.0


@given(groups)
def test_relative_weights_are_preserved_before_recentring(members: Members) -> None:
    result = redistributed(members, MAX_RESCALE)
    shares = [
        (advantage + result.shift, weight)
        for (passed, _), advantage, weight in zip(members, result.advantages, result.weights, strict=True)
        if passed
    ]
    for share, weight in shares:
        assert share * shares[0][1] == pytest.approx(shares[0][0] * weight, rel=1e-12, abs=1e-12)


@given(groups)
def test_the_better_of_two_passing_members_never_gets_less(members: Members) -> None:
    passing = [(f, a) for (p, f), a in zip(members, redistributed(members, MAX_RESCALE).advantages, strict=True) if p]
    by_factor = sorted(passing)
    assert [a for _, a in by_factor] == sorted(a for _, a in by_factor)


@given(groups, st.randoms(use_true_random=False))
def test_it_is_equivariant_under_permutation(members: Members, shuffler: random.Random) -> None:
    order = list(range(len(members)))
    shuffler.shuffle(order)
    straight = redistributed(members, MAX_RESCALE)
    shuffled = redistributed([members[i] for i in order], MAX_RESCALE)
    assert shuffled.advantages == [straight.advantages[i] for i in order]
    assert shuffled.rescale == straight.rescale


@given(groups)
def test_ties_are_equal(members: Members) -> None:
    result = redistributed(members, MAX_RESCALE)
    seen: dict[tuple[bool, float], float] = {}
    for (passed, factor), advantage in zip(members, result.advantages, strict=True):
        key = (passed, factor if passed else 1.0)
        assert seen.setdefault(key, advantage) == advantage


@given(factors, st.integers(1, 15))
def test_one_passing_member_is_unchanged(factor: float, num_failing: int) -> None:
    members = [(True, factor), *[(False, 1.0)] * num_failing]
    result = redistributed(members, MAX_RESCALE)
    assert result.advantages == plain(members)
    assert (result.rescale, result.weights) == (1.0, [1.0] * len(members))


@given(st.lists(st.booleans(), min_size=1, max_size=24), factors)
def test_an_all_tied_ranking_gives_exactly_grpo(passed: list[bool], factor: float) -> None:
    members = [(p, factor) for p in passed]
    assert redistributed(members, MAX_RESCALE).advantages == plain(members)


def test_the_inputs_are_not_touched() -> None:
    advantages, passed, weights = [0.5, 0.5, -0.5, -0.5], [True, True, False, False], [1.0, 0.2, 1.0, 1.0]
    redistribute(advantages, passed, weights, MAX_RESCALE)
    assert (advantages, passed, weights) == ([0.5, 0.5, -0.5, -0.5], [True, True, False, False], [1.0, 0.2, 1.0, 1.0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"advantages": [0.5]}, "group: expected lists of one length, got 1, 2, 2"),
        ({"advantages": [math.nan, 0.5]}, "advantages: expected finite numbers"),
        ({"weights": [0.0, 1.0]}, r"weights: expected factors in \(0, 1\], got \[0.0, 1.0\]"),
        ({"weights": [math.nan, 1.0]}, "weights: expected factors"),
        ({"max_rescale": 0.9}, "max_rescale: expected 1 or more, got 0.9"),
        ({"max_rescale": math.nan}, "max_rescale: expected 1 or more"),
    ],
)
def test_impossible_input_is_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"advantages": [0.5, -0.5], "passed": [True, False], "weights": [1.0, 1.0], "max_rescale": 1.5}
    with pytest.raises(ValueError, match=message):
        redistribute(**{**arguments, **changed})


def make_grades(*tiers_and_positions: tuple[Any, int]) -> list[Grade]:
    return [Grade(sample_index=i, tier=t, position=p) for i, (t, p) in enumerate(tiers_and_positions)]


def test_tier_one_has_its_top_tie_at_full_weight_and_the_others_at_nine_tenths() -> None:
    assert tier_weights(make_grades((1, 1), (1, 0), (1, 0), (1, 2))) == [0.9, 1.0, 1.0, 0.9]


def test_tier_two_falls_linearly_over_its_tied_groups() -> None:
    assert tier_weights(make_grades((2, 0), (2, 1), (2, 1), (2, 2))) == pytest.approx([0.85, 0.625, 0.625, 0.40])
    assert tier_weights(make_grades((2, 4), (2, 7))) == pytest.approx([0.85, 0.40])


def test_a_single_tie_in_tier_two_gets_the_midpoint_and_tier_three_a_fifth() -> None:
    assert tier_weights(make_grades((3, 2), (1, 0), (2, 1), (2, 1), (3, 5))) == [0.2, 1.0, 0.625, 0.625, 0.2]


def test_no_grades_give_no_factors() -> None:
    assert tier_weights([]) == []


def test_a_worse_tier_before_a_better_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ranking: expected tiers in ascending order, got \[2, 1\]"):
        tier_weights(make_grades((2, 0), (1, 1)))


def test_a_tie_across_tiers_is_refused() -> None:
    with pytest.raises(ValueError, match="position 0: expected one tier among ties"):
        tier_weights(make_grades((1, 0), (2, 0)))


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 5)), max_size=16))
def test_factors_fall_with_the_ranking(pairs: list[tuple[int, int]]) -> None:
    grades = make_grades(*((tier, 10 * tier + place) for tier, place in pairs))
    weights = tier_weights(grades)
    assert all(0.0 < weight <= 1.0 for weight in weights)
    by_position = [weight for _, weight in sorted((g.position, w) for g, w in zip(grades, weights, strict=True))]
    assert by_position == sorted(by_position, reverse=True)
