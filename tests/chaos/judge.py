"""The judgement: what the topics hold against a run, and against the same run undisturbed.

Pure, but for the audit, which reads the topics itself.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gagar.cli.audit import run_audit
from tests.chaos.expected_outcomes import ExpectedOutcomes, Letter
from tests.chaos.facts import Facts
from tests.chaos.plan import Plan


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run against its expected outcomes."""

    lost: list[str]
    """Groups without an outcome, and how far they came."""
    doubled: list[str]
    """Groups with several outcomes, and records that are there more than once."""
    different: list[str]
    """Groups that ended otherwise than they had to."""
    unasked: list[str]
    """Outcomes of groups that nobody asked for."""
    letters_missing: list[str]
    letters_beyond: list[str]
    """Dead letters that were not to be, or not so often."""
    audit: list[str]
    """Findings."""

    @property
    def faults(self) -> dict[str, list[str]]:
        """All of them by kind, without empty ones."""
        return {name: found for name, found in msgspec.structs.asdict(self).items() if found}


async def judge(plan: Plan, facts: Facts) -> Judgement:
    """A run against what had to become of it."""
    expected = plan.expected
    report = await run_audit(plan.run)
    letters = expected.letters
    group_ids = set(expected.group_ids())
    return Judgement(
        lost=[
            f"{name}: got as far as {facts.reached.get(name, 'nowhere')}"
            for name in expected.group_ids()
            if name not in facts.ends
        ],
        doubled=facts.doubled + [f"{name}: {len(ends)} outcomes" for name, ends in facts.ends.items() if len(ends) > 1],
        different=list(_different(expected, facts)),
        unasked=[name for name in facts.ends if name not in group_ids],
        letters_missing=_told(letters - facts.letters),
        letters_beyond=_told(facts.letters - letters),
        audit=report.findings,
    )


def _different(expected: ExpectedOutcomes, facts: Facts) -> Iterator[str]:
    for outcome in expected.all():
        ends = facts.ends.get(outcome.group_id, [])
        if ends and set(ends) != {outcome.end}:
            poison = f" with {outcome.poison.kind}" if outcome.poison else ""
            yield f"{outcome.group_id}{poison}: expected {outcome.end}, got {', '.join(map(str, ends))}"


def _told(letters: Counter[Letter]) -> list[str]:
    return [f"{letter.stage} {letter.group_id}/{letter.sample_index} x{count}" for letter, count in letters.items()]


def differences(calm: Facts, fire: Facts) -> list[str]:
    """Where a run under fire is not what the undisturbed one was: as sets, so in whatever order."""
    pairs: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "outcome": (calm.ends, fire.ends),
        "request": (calm.requests, fire.requests),
        "advantages": (calm.advantages, fire.advantages),
    }
    return [
        f"{what} of {name}: undisturbed {before.get(name)}, under fire {after.get(name)}"
        for what, (before, after) in pairs.items()
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
