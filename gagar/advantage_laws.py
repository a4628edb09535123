"""The laws of a group's advantages, checked on the record alone: what `gagar audit` holds against the advantage publisher.

Written apart from `gagar.advantage` on purpose: an audit that called the audited code would agree with its faults.
"""

import math
from collections.abc import Iterator

from gagar.records import GroupAdvantages, MemberAdvantage

TOLERANCE = 1e-9
"""Rounding that sums of a group may show; advantages are below 10."""


def is_near(a: float, b: float) -> bool:
    """Equal up to rounding."""
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def broken_laws(group: GroupAdvantages) -> list[str]:
    """What is wrong with a group's advantages, each with the group's id; empty if the laws hold."""
    numbers = [n for m in group.members for n in (m.grpo_advantage, m.weight, m.advantage)]
    if not all(math.isfinite(n) for n in (*numbers, group.rescale, group.shift)):
        return [f"advantages of {group.group_id}: expected finite numbers, got another"]
    laws = (_members, _baseline, _weights, _failing, _sum, _ratios)
    return [f"advantages of {group.group_id}: {text}" for law in laws for text in law(group)]


def _passing(group: GroupAdvantages) -> list[MemberAdvantage]:
    return [member for member in group.members if member.reward == 1.0]


def _num_valid(group: GroupAdvantages) -> int:
    return group.num_valid or len(group.members)


def _members(group: GroupAdvantages) -> Iterator[str]:
    indices = [member.sample_index for member in group.members]
    if indices != sorted(set(indices)):
        yield f"expected members once each, by sample_index, got {indices}"
    if not 0 < len(_passing(group)) < _num_valid(group):
        yield f"expected passing and failing members, got {len(_passing(group))} passing of {_num_valid(group)} valid"


def _baseline(group: GroupAdvantages) -> Iterator[str]:
    mean = len(_passing(group)) / max(_num_valid(group), 1)
    for member in group.members:
        if not is_near(member.grpo_advantage, member.reward - mean):
            what = f"member {member.sample_index}: expected grpo_advantage {member.reward - mean:.9f}"
            yield f"{what}, got {member.grpo_advantage:.9f}"


def _weights(group: GroupAdvantages) -> Iterator[str]:
    for member in group.members:
        is_plain = bool(group.fallback) or member.reward != 1.0
        if not 0.0 < member.weight <= 1.0 or (is_plain and member.weight != 1.0):
            expected = "1" if is_plain else "a factor in (0, 1]"
            yield f"member {member.sample_index}: expected weight {expected}, got {member.weight}"


def _failing(group: GroupAdvantages) -> Iterator[str]:
    """Unchanged, but for the recentring of a capped group."""
    if not group.was_capped and group.shift != 0.0:
        yield f"expected no shift of a group that was not capped, got {group.shift}"
    for member in group.members:
        expected = member.grpo_advantage - group.shift
        if member.reward != 1.0 and not is_near(member.advantage, expected):
            yield f"failing member {member.sample_index}: expected advantage {expected:.9f}, got {member.advantage:.9f}"


def _sum(group: GroupAdvantages) -> Iterator[str]:
    """The passing sum is preserved; if capped, the mean over all valid members is 0, those without tokens included."""
    passing = _passing(group)
    if group.was_capped:
        num_valid = max(_num_valid(group), 1)
        num_untrained = num_valid - len(group.members)
        untrained = -len(passing) / num_valid - group.shift
        total = math.fsum(member.advantage for member in group.members) + num_untrained * untrained
        if not is_near(total, 0.0):
            yield f"expected a sum of 0 after recentring, got {total:.9f}"
        return
    expected = math.fsum(member.grpo_advantage for member in passing)
    got = math.fsum(member.advantage for member in passing)
    if not is_near(got, expected):
        yield f"expected a passing sum of {expected:.9f}, got {got:.9f}"


def _ratios(group: GroupAdvantages) -> Iterator[str]:
    """Before recentring each passing member has rescale x weight x its GRPO advantage."""
    for member in _passing(group):
        expected = group.rescale * member.weight * member.grpo_advantage - group.shift
        if not is_near(member.advantage, expected):
            yield f"passing member {member.sample_index}: expected advantage {expected:.9f}, got {member.advantage:.9f}"
