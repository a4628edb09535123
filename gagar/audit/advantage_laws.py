"""The laws of a group's advantages, checked on the record alone: what `gagar audit` holds against the advantage publisher.

Written apart from `gagar.groups.advantages` on purpose: an audit that called the audited code would agree with its faults.
"""

import math
from collections.abc import Iterator

from gagar.audit.findings import Finding, Law
from gagar.records import GroupAdvantages, MemberAdvantage

TOLERANCE = 1e-9
"""Rounding that sums of a group may show; advantages are below 10."""


def is_near(a: float, b: float) -> bool:
    """Equal up to rounding."""
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def broken_laws(group: GroupAdvantages) -> list[Finding]:
    """What is wrong with a group's advantages; empty if the laws hold."""
    numbers = [n for m in group.members for n in (m.grpo_advantage, m.weight, m.advantage)]
    if not all(math.isfinite(n) for n in (*numbers, group.rescale, group.shift)):
        return [Finding(Law.ADVANTAGES_FINITE, "expected finite numbers, got another")]
    laws = (_members, _mixed, _baseline, _weights, _shift, _cap, _failing, _sum, _centre, _ratios)
    return [finding for law in laws for finding in law(group)]


def _passing(group: GroupAdvantages) -> list[MemberAdvantage]:
    return [member for member in group.members if member.reward == 1.0]


def _num_valid(group: GroupAdvantages) -> int:
    return group.num_valid or len(group.members)


def _members(group: GroupAdvantages) -> Iterator[Finding]:
    indices = [member.sample_index for member in group.members]
    if indices != sorted(set(indices)):
        yield Finding(Law.ADVANTAGES_MEMBERS, f"expected members once each, by sample_index, got {indices}")


def _mixed(group: GroupAdvantages) -> Iterator[Finding]:
    num_passing, num_valid = len(_passing(group)), _num_valid(group)
    if not 0 < num_passing < num_valid:
        text = f"expected passing and failing members, got {num_passing} passing of {num_valid} valid"
        yield Finding(Law.ADVANTAGES_MIXED, text)


def _baseline(group: GroupAdvantages) -> Iterator[Finding]:
    mean = len(_passing(group)) / max(_num_valid(group), 1)
    for member in group.members:
        if not is_near(member.grpo_advantage, member.reward - mean):
            what = f"member {member.sample_index}: expected grpo_advantage {member.reward - mean:.9f}"
            yield Finding(Law.ADVANTAGES_BASELINE, f"{what}, got {member.grpo_advantage:.9f}")


def _weights(group: GroupAdvantages) -> Iterator[Finding]:
    for member in group.members:
        is_plain = bool(group.fallback) or member.reward != 1.0
        if not 0.0 < member.weight <= 1.0 or (is_plain and member.weight != 1.0):
            expected = "1" if is_plain else "a factor in (0, 1]"
            text = f"member {member.sample_index}: expected weight {expected}, got {member.weight}"
            yield Finding(Law.ADVANTAGES_WEIGHT, text)


def _shift(group: GroupAdvantages) -> Iterator[Finding]:
    if not group.was_capped and group.shift != 0.0:
        text = f"expected no shift of a group that was not capped, got {group.shift}"
        yield Finding(Law.ADVANTAGES_SHIFT, text)


def _cap(group: GroupAdvantages) -> Iterator[Finding]:
    """Capped: the rescale falls short of what would keep the passing sum."""
    passing = _passing(group)
    wanted = math.fsum(member.grpo_advantage for member in passing)
    got = group.rescale * math.fsum(member.weight * member.grpo_advantage for member in passing)
    if group.was_capped and got > wanted + TOLERANCE:
        text = f"expected the rescale of a capped group to keep at most the passing sum {wanted:.9f}, got {got:.9f}"
        yield Finding(Law.ADVANTAGES_CAP, text)


def _failing(group: GroupAdvantages) -> Iterator[Finding]:
    """Unchanged, but for the recentring of a capped group."""
    for member in group.members:
        expected = member.grpo_advantage - group.shift
        if member.reward != 1.0 and not is_near(member.advantage, expected):
            what = f"failing member {member.sample_index}: expected advantage {expected:.9f}"
            yield Finding(Law.ADVANTAGES_FAILING, f"{what}, got {member.advantage:.9f}")


def _sum(group: GroupAdvantages) -> Iterator[Finding]:
    """The passing sum is preserved, unless capped."""
    passing = _passing(group)
    expected = math.fsum(member.grpo_advantage for member in passing)
    got = math.fsum(member.advantage for member in passing)
    if not group.was_capped and not is_near(got, expected):
        yield Finding(Law.ADVANTAGES_SUM, f"expected a passing sum of {expected:.9f}, got {got:.9f}")


def _centre(group: GroupAdvantages) -> Iterator[Finding]:
    """If capped, the mean over all valid members is 0, those without tokens included."""
    num_valid = max(_num_valid(group), 1)
    untrained = -len(_passing(group)) / num_valid - group.shift
    total = math.fsum(member.advantage for member in group.members) + (num_valid - len(group.members)) * untrained
    if group.was_capped and not is_near(total, 0.0):
        yield Finding(Law.ADVANTAGES_CENTRE, f"expected a sum of 0 after recentring, got {total:.9f}")


def _ratios(group: GroupAdvantages) -> Iterator[Finding]:
    """Before recentring each passing member has rescale x weight x its GRPO advantage."""
    for member in _passing(group):
        expected = group.rescale * member.weight * member.grpo_advantage - group.shift
        if not is_near(member.advantage, expected):
            what = f"passing member {member.sample_index}: expected advantage {expected:.9f}"
            yield Finding(Law.ADVANTAGES_RATIO, f"{what}, got {member.advantage:.9f}")
