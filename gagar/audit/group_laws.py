"""The laws of one group's trail and of one outcome, each on what `gagar.audit.fold` has kept of it. Pure."""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from gagar.audit.findings import Finding, Law
from gagar.audit.trails import Ending, Trail
from gagar.records import Outcome

GATHERED_REASONS = frozenset({"all_passed", "all_failed", "too_few_valid"})
"""Reasons for which a group ends before the topic `groups`."""
WAY = ("groups", "graded-groups", "advantages")
"""The topics that hold a group as one record, in order."""


def is_retired(trail: Trail, cut: Collection[str]) -> bool:
    """Whether retention explains which requests are missing: all, or those that lay first, in a log that has been cut."""
    if "rollout-requests" not in cut or (trail.asked and len(trail.asked) >= trail.group_size):
        return False
    return set(range(min(trail.asked, default=0))) | trail.asked.keys() == set(range(trail.group_size))


def broken_trail(trail: Trail, surviving: Sequence[Ending], cut: Collection[str]) -> Iterator[Finding]:
    """What is wrong with a group's way. `surviving`: its endings in the surviving lineage; `cut`: topics of which retention
    has taken the beginning, in the group's partition."""
    if not trail.asked:
        if "rollout-requests" not in cut:
            yield Finding(Law.REQUESTED, "expected a request, got records of a group that nobody asked for")
        return
    if not is_retired(trail, cut):
        yield from _broken_requests(trail)
    if not trail.members <= trail.verdicts and "verdicts" not in cut:
        members = sorted(trail.members - trail.verdicts)
        yield Finding(Law.MEMBER_VERDICT, f"expected a verdict of each member on groups, got none of samples {members}")
    if not trail.verdicts <= trail.trajectories.keys() and "trajectories" not in cut:
        samples = sorted(trail.verdicts - trail.trajectories.keys())
        yield Finding(Law.VERDICT_TRAJECTORY, f"expected a trajectory of each verdict, got none of samples {samples}")
    if len(surviving) > 1:
        got = ", ".join(map(str, surviving))
        yield Finding(Law.ONE_OUTCOME, f"expected one outcome, got {len(surviving)}: {got}")
    yield from _broken_way(trail, cut)
    for ending in surviving:
        yield from _broken_ending(trail, ending, cut)


def _broken_requests(trail: Trail) -> Iterator[Finding]:
    num_asked = len(trail.asked) + len(trail.rejected.difference(trail.asked.values()))
    if num_asked != trail.group_size:
        yield Finding(Law.REQUESTED_WHOLE, f"expected {trail.group_size} requests, got {num_asked}")
    if not trail.verdicts <= trail.asked.keys():
        samples = sorted(trail.verdicts - trail.asked.keys())
        yield Finding(Law.VERDICT_REQUESTED, f"expected verdicts of requested samples only, got samples {samples}")

    if not trail.trajectories.keys() <= trail.asked.keys():
        samples = sorted(trail.trajectories.keys() - trail.asked.keys())
        yield Finding(Law.TRAJECTORY_REQUESTED, f"expected trajectories of requested samples only, got samples {samples}")


def broken_answers(trail: Trail, cut: Collection[str]) -> Iterator[Finding]:
    """Of a group that has ended and whose deadline is long past: every request that could be read has a trajectory."""
    if "trajectories" not in cut:
        answered = trail.trajectories
        silent = [index for index, at in trail.asked.items() if index not in answered and at not in trail.rejected]
        if len(silent) > len(trail.unreadable.difference(answered.values())):
            text = f"expected a trajectory of each request by now, got none of samples {sorted(silent)}"
            yield Finding(Law.REQUEST_ANSWERED, text)


def _broken_way(trail: Trail, cut: Collection[str]) -> Iterator[Finding]:
    """Each topic holds a group at most once, and only after the topic before it."""
    counts = dict(zip(WAY, (trail.num_groups, trail.num_graded, trail.num_advantages), strict=True))
    for topic, count in counts.items():
        if count > 1:
            yield Finding(Law.TOPIC_ONCE, f"expected it once on {topic}, got it {count} times")
    for before, topic in pairwise(WAY):
        if counts[topic] and not counts[before] and before not in cut:
            yield Finding(Law.TOPIC_ORDER, f"expected it on {before} before {topic}, got it on the later one only")


def _broken_ending(trail: Trail, ending: Ending, cut: Collection[str]) -> Iterator[Finding]:
    purpose = "evaluation" if trail.is_evaluation else "training"
    if {"trained": "training", "evaluated": "evaluation"}.get(ending.kind, purpose) != purpose:
        text = f"expected an end that fits its purpose, got {ending} of a group for {purpose}"
        yield Finding(Law.OUTCOME_OF_PURPOSE, text)
    if ending.kind == "trained" and trail.num_advantages == 0 and "advantages" not in cut:
        yield Finding(Law.TRAINED_ON_ADVANTAGES, "expected advantages of a trained group, got none")
    is_gathered = ending.kind == "evaluated" or ending.reason in GATHERED_REASONS
    if is_gathered and trail.num_groups:
        yield Finding(Law.OUTCOME_OF_WAY, f"expected {ending} to be its end, got it on groups as well")


def broken_staleness(trail: Trail, max_staleness: float) -> Iterator[Finding]:
    """Of every step that trained the group, superseded ones too: the bound, and what the outcome says of it."""
    for ending in trail.endings:
        if ending.kind != "trained":
            continue
        # As the learner counts: from the version trained, which is the step before; tokens of an abandoned future are fresh.
        staleness = ending.staleness if trail.oldest_version < 0 else max(0, ending.step - 1 - trail.oldest_version)
        if staleness > max_staleness:
            text = f"expected a staleness of at most {max_staleness:g}, got {staleness}: {ending}"
            yield Finding(Law.STALENESS_BOUND, text)
        if ending.staleness != staleness:
            text = f"expected a staleness of {staleness}, got {ending.staleness}: {ending} from version {trail.oldest_version}"
            yield Finding(Law.STALENESS_TOLD, text)


def broken_outcome(outcome: Outcome) -> Iterator[Finding]:
    """What is wrong with an outcome on its own."""
    if (outcome.kind == "dropped") != bool(outcome.reason):
        text = f"expected a reason of dropped groups only, got {outcome.kind} {outcome.reason!r}"
        yield Finding(Law.OUTCOME_REASON, text)
    if outcome.kind == "trained" and (not outcome.run_id or outcome.step < 1):
        text = f"expected run and step of a trained group, got {outcome.run_id!r} and {outcome.step}"
        yield Finding(Law.OUTCOME_STEP, text)
    if not 0 <= outcome.num_clean <= outcome.num_passed <= outcome.num_valid <= outcome.num_requested:
        counts = (outcome.num_clean, outcome.num_passed, outcome.num_valid, outcome.num_requested)
        text = f"expected clean <= passed <= valid <= requested attempts, got {counts}"
        yield Finding(Law.OUTCOME_COUNTS, text)
