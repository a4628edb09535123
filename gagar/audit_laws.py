"""The laws of one group's trail, one outcome and one policy version, each on what `gagar.audit` has kept of it."""

from collections.abc import Iterator, Sequence

import msgspec

from gagar.records import LineageEntry, Outcome, PolicyVersion

GATHERED_REASONS = frozenset({"all_passed", "all_failed", "too_few_valid"})
"""Reasons for which a group ends before the topic `groups`."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What outcomes are told apart by; a run has few of these."""

    kind: str
    reason: str
    run_id: str
    step: int

    def __str__(self) -> str:
        where = f" by {self.run_id} at step {self.step}" if self.run_id else ""
        return f"{self.kind}{f' {self.reason}' if self.reason else ''}{where}"


class Trail:
    """What was seen of one group; small integers only."""

    __slots__ = (
        "group_size",
        "is_evaluation",
        "num_advantages",
        "num_graded",
        "num_groups",
        "outcomes",
        "requests",
        "verdicts",
    )

    def __init__(self) -> None:
        self.group_size = 0
        self.is_evaluation = False
        self.requests = 0
        """A bit for each sample_index; so `verdicts`."""
        self.verdicts = 0
        self.num_groups = 0
        self.num_graded = 0
        self.num_advantages = 0
        self.outcomes: tuple[int, ...] = ()
        """Places in the audit's table of endings."""


def broken_trail(trail: Trail, surviving: Sequence[Ending]) -> Iterator[str]:
    """What is wrong with a group's way; `surviving` are its endings in the surviving lineage."""
    if not trail.requests:
        yield "expected a request, got records of a group that nobody asked for"
        return
    if trail.requests != (1 << trail.group_size) - 1:
        yield f"expected {trail.group_size} requests, got {trail.requests.bit_count()}"
    if trail.verdicts & ~trail.requests:
        yield "expected verdicts of requested samples only, got another"
    if len(surviving) > 1:
        yield f"expected one outcome, got {len(surviving)}: {', '.join(map(str, surviving))}"
    yield from _broken_way(trail)
    for ending in surviving:
        yield from _broken_ending(trail, ending)


def _broken_way(trail: Trail) -> Iterator[str]:
    """Each topic holds a group at most once, and only after the topic before it."""
    counts = {"groups": trail.num_groups, "graded-groups": trail.num_graded, "advantages": trail.num_advantages}
    for topic, count in counts.items():
        if count > 1:
            yield f"expected it once on {topic}, got it {count} times"
    if trail.num_graded > 0 and trail.num_groups == 0:
        yield "expected it on groups before graded-groups, got it on the later one only"
    if trail.num_advantages > 0 and trail.num_graded == 0:
        yield "expected it on graded-groups before advantages, got it on the later one only"


def _broken_ending(trail: Trail, ending: Ending) -> Iterator[str]:
    purpose = "evaluation" if trail.is_evaluation else "training"
    if {"trained": "training", "evaluated": "evaluation"}.get(ending.kind, purpose) != purpose:
        yield f"expected an end that fits its purpose, got {ending} of a group for {purpose}"
    if ending.kind == "trained" and trail.num_advantages == 0:
        yield "expected advantages of a trained group, got none"
    is_gathered = ending.kind == "evaluated" or ending.reason in GATHERED_REASONS
    if is_gathered and trail.num_groups:
        yield f"expected {ending} to be its end, got it on groups as well"


def broken_outcome(outcome: Outcome) -> Iterator[str]:
    """What is wrong with an outcome on its own."""
    if (outcome.kind == "dropped") != bool(outcome.reason):
        yield f"expected a reason of dropped groups only, got {outcome.kind} {outcome.reason!r}"
    if outcome.kind == "trained" and (not outcome.run_id or outcome.step < 0):
        yield f"expected run and step of a trained group, got {outcome.run_id!r} and {outcome.step}"
    if not 0 <= outcome.num_clean <= outcome.num_passed <= outcome.num_valid <= outcome.num_requested:
        counts = (outcome.num_clean, outcome.num_passed, outcome.num_valid, outcome.num_requested)
        yield f"expected clean <= passed <= valid <= requested attempts, got {counts}"


def broken_version(version: PolicyVersion, before: PolicyVersion | None) -> Iterator[str]:
    """What is wrong with a version after `before`, the one that its run published last."""
    yield from _broken_lineage(version)
    if before is None:
        return
    if version.version <= before.version or version.step < before.step:
        yield f"expected one after version {before.version} of step {before.step}, got step {version.step}"
    if version.lineage != before.lineage:
        yield f"expected its run's lineage {_named(before.lineage)}, got {_named(version.lineage)}"
    if before.is_last:
        yield f"expected none after version {before.version}, the planned end of its run, got one"


def _broken_lineage(version: PolicyVersion) -> Iterator[str]:
    steps = [entry.last_step for entry in version.lineage]
    if steps != sorted(steps) or any(step > version.step for step in steps):
        yield f"expected a lineage of ascending steps up to {version.step}, got {steps}"
    run_ids = [entry.run_id for entry in version.lineage] + [version.run_id]
    if len(set(run_ids)) != len(run_ids):
        yield f"expected each run once in its lineage, got {_named(version.lineage)}"


def _named(lineage: Sequence[LineageEntry]) -> list[str]:
    return [f"{entry.run_id}@{entry.last_step}" for entry in lineage]
