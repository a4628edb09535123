"""GRPO advantages, and GAGAR's redistribution of them among the passing members of a group (arXiv 2609.32577).

In: rewards, which members passed, a factor in (0, 1] for each. Out: advantages. Pure, float64; sums are exactly rounded
(`math.fsum`), so no result depends on the order of the members.

Laws, for G members with binary rewards: the sum over passing members is preserved and failing ones are unchanged (uncapped);
the group's mean stays 0 (capped, by recentring); factors' ratios are kept; equivariant under permutation; ties equal; one
passing member, or a ranking that tells nothing apart, gives exactly GRPO.
"""

import math
import operator
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from gagar.config import Table
from gagar.records import Grade

Factor = Annotated[float, Meta(gt=0, le=1, description="more than 0, at most 1")]
"""What scales an advantage."""


class TierWeights(Table, frozen=True, kw_only=True):
    """The factor of a passing member by its tier and place."""

    top: Factor = 1.0
    """The best tied group of tier 1."""
    clean: Factor = 0.9
    """Others of tier 1."""
    upper: Factor = 0.85
    """The first tied group of tier 2; linear between this one and the last."""
    lower: Factor = 0.40
    """The last tied group of tier 2."""
    single: Factor = 0.625
    """The only tied group of tier 2."""
    rejected: Factor = 0.20
    """Tier 3."""


METHOD_WEIGHTS = TierWeights()
"""As the method has them."""


class Redistribution(msgspec.Struct, frozen=True, kw_only=True):
    """What `redistribute` made of a group; all lists are [G]."""

    advantages: list[float]
    weights: list[float]
    """Factors in effect: as given for passing members, all 1 if there was nothing to redistribute, 1 for failing members."""
    rescale: float
    """Lambda: what restores the passing sum."""
    was_capped: bool
    shift: float
    """What recentring took from every member; 0 if not capped."""


def grpo_advantages(rewards: Sequence[float]) -> list[float]:
    """R_i - mean(R) for each of [G] rewards of the valid members; not divided by the standard deviation."""
    if not rewards:
        return []
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def redistribute(
    advantages: Sequence[float], passed: Sequence[bool], weights: Sequence[float], max_rescale: float
) -> Redistribution:
    """Advantages [G] with the passing ones downweighted by `weights` and rescaled; raises ValueError on impossible input.

    a+ = max(a, 0), lambda = sum_P a+ / sum_P f a+. While lambda <= max_rescale: lambda f a+ for passing members, the others as
    they were. Else lambda = max_rescale, and the mean over the group is taken from every member.
    """
    _check(advantages, passed, weights, max_rescale)
    positive = [max(a, 0.0) for a, p in zip(advantages, passed, strict=True) if p]
    factors = [f for f, p in zip(weights, passed, strict=True) if p]
    weighted_sum = math.fsum(map(operator.mul, positive, factors))
    if weighted_sum == 0.0 or len(set(factors)) == 1:
        ones = [1.0] * len(advantages)
        return Redistribution(advantages=list(advantages), weights=ones, rescale=1.0, was_capped=False, shift=0.0)
    wanted = math.fsum(positive) / weighted_sum
    was_capped = wanted > max_rescale
    rescale = min(wanted, max_rescale)
    bounded = _rescaled(advantages, passed, weights, rescale)
    shift = math.fsum(bounded) / len(bounded) if was_capped else 0.0
    return Redistribution(
        advantages=[b - shift for b in bounded],
        weights=[f if p else 1.0 for p, f in zip(passed, weights, strict=True)],
        rescale=rescale,
        was_capped=was_capped,
        shift=shift,
    )


def _rescaled(advantages: Sequence[float], passed: Sequence[bool], weights: Sequence[float], rescale: float) -> list[float]:
    rows = zip(advantages, passed, weights, strict=True)
    return [rescale * f * max(a, 0.0) if p else a for a, p, f in rows]


def tier_weights(grades: Sequence[Grade], weights: TierWeights = METHOD_WEIGHTS) -> list[float]:
    """The factor of each grade, in the order given; raises ValueError if a better tier stands behind a worse one."""
    tiers = _tiers(grades)
    factors = {position: weights.clean if tier == 1 else weights.rejected for position, tier in tiers.items()}
    first = min(tiers, default=0)
    if tiers.get(first) == 1:
        factors[first] = weights.top
    middle = sorted(position for position, tier in tiers.items() if tier == 2)
    for index, position in enumerate(middle):
        factors[position] = _middle_weight(weights, index, len(middle))
    return [factors[grade.position] for grade in grades]


def _tiers(grades: Sequence[Grade]) -> dict[int, int]:
    """Tier by position, ties checked and the order of tiers too."""
    tiers: dict[int, int] = {}
    for grade in grades:
        if tiers.setdefault(grade.position, grade.tier) != grade.tier:
            raise ValueError(f"position {grade.position}: expected one tier among ties, got several")
    in_order = [tiers[position] for position in sorted(tiers)]
    if in_order != sorted(in_order):
        raise ValueError(f"ranking: expected tiers in ascending order, got {in_order}")
    return tiers


def _middle_weight(weights: TierWeights, index: int, count: int) -> float:
    if count == 1:
        return weights.single
    return weights.upper + (weights.lower - weights.upper) * index / (count - 1)


def _check(advantages: Sequence[float], passed: Sequence[bool], weights: Sequence[float], max_rescale: float) -> None:
    if not len(advantages) == len(passed) == len(weights):
        raise ValueError(f"group: expected lists of one length, got {len(advantages)}, {len(passed)}, {len(weights)}")
    if not all(math.isfinite(a) for a in advantages):
        raise ValueError(f"advantages: expected finite numbers, got {list(advantages)}")
    if not all(0.0 < f <= 1.0 for f in weights):
        raise ValueError(f"weights: expected factors in (0, 1], got {list(weights)}")
    if not max_rescale >= 1.0:
        raise ValueError(f"max_rescale: expected 1 or more, got {max_rescale}")
