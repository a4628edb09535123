"""The audit: a pure fold over the topics of a run, and what it holds against them.

In: deliveries, in log order per partition; those of `rollout-requests` last, so that nothing downstream is older than what the
audit knows of it. Out: an `AuditReport`. Laws: every requested group ends with exactly one outcome in the surviving lineage;
requested = trained + dropped + evaluated + in flight; no group is doubled on the way; references lie inside their logs; the
sum law of every group's advantages. Kept: small integers for each group, sums for each evaluation round.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gagar.advantage_laws import broken_laws
from gagar.audit_laws import Ending, Trail, broken_outcome, broken_trail, broken_version
from gagar.lineage import Lineage
from gagar.records import (
    DeadLetter,
    GradedGroup,
    Group,
    GroupAdvantages,
    LogRef,
    Outcome,
    PolicyVersion,
    RolloutRequest,
    Verdict,
)
from gagar.stream.handlers import Delivery

MAX_FINDINGS = 200
"""Findings kept in words; more are only counted."""
Ranges = Mapping[tuple[str, int], tuple[int, int]]
"""First offset and end offset by topic and partition."""


class RoundStats(msgspec.Struct, kw_only=True):
    """Sums over the groups of an evaluation round."""

    num_groups: int = 0
    num_attempts: int = 0
    num_valid: int = 0
    num_passed: int = 0
    num_clean: int = 0
    """Passing attempts without needless statement or edit outside the task."""
    num_sampled_tokens: int = 0

    @property
    def pass_rate(self) -> float:
        """Passed by valid attempts; 0 without valid ones."""
        return self.num_passed / self.num_valid if self.num_valid else 0.0

    @property
    def clean_share(self) -> float:
        """Clean by passed attempts; 0 if none passed."""
        return self.num_clean / self.num_passed if self.num_passed else 0.0


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the topics say of a run."""

    findings: list[str]
    """Broken laws, in words; at most `MAX_FINDINGS` and a count of the rest."""
    num_requested: int
    """Groups, of both purposes."""
    num_trained: int
    num_evaluated: int
    dropped: dict[str, int]
    """Groups by reason."""
    num_in_flight: int
    num_superseded: int
    """Outcomes of steps that a restarted learner left behind; in no other count."""
    num_capped: int
    """Groups whose rescaling met its bound."""
    num_fallback: int
    """Groups that kept their GRPO advantages."""
    num_dead_letters: int
    rounds: dict[int, RoundStats]
    """By the step that names the round, ascending."""
    policy_version: int
    """Newest; -1 if none."""
    is_ended: bool
    """The newest policy version is the planned end."""

    @property
    def is_clean(self) -> bool:
        """Every law holds."""
        return not self.findings

    @property
    def num_dropped(self) -> int:
        return sum(self.dropped.values())


class Tally:
    """Groups by how they ended."""

    def __init__(self) -> None:
        self.ended: dict[tuple[str, str], int] = {}
        """Surviving outcomes by kind and reason."""
        self.num_requested = 0
        self.num_in_flight = 0
        self.num_superseded = 0

    def add(self, trail: Trail, surviving: Sequence[Ending]) -> None:
        self.num_requested += trail.requests > 0
        self.num_in_flight += trail.requests > 0 and not surviving
        self.num_superseded += len(trail.outcomes) - len(surviving)
        for ending in surviving:
            key = (ending.kind, ending.reason)
            self.ended[key] = self.ended.get(key, 0) + 1


class Findings:
    """Broken laws in words, bounded."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._num_more = 0

    def copy(self) -> "Findings":
        """So that a report can add to them and the fold can go on."""
        other = Findings()
        other._texts, other._num_more = list(self._texts), self._num_more
        return other

    def add(self, text: str) -> None:
        if len(self._texts) < MAX_FINDINGS:
            self._texts.append(text)
        else:
            self._num_more += 1

    def texts(self) -> list[str]:
        return [*self._texts, f"and {self._num_more} more findings"] if self._num_more else list(self._texts)


class Audit:
    """The fold. `apply` each delivery once, then `report`."""

    def __init__(self) -> None:
        self._trails: dict[str, Trail] = {}
        self._endings: dict[Ending, int] = {}
        self._furthest: dict[tuple[str, int], LogRef] = {}
        """By topic and partition, the reference that reaches furthest."""
        self._lineage = Lineage()
        self._newest_of_run: dict[str, PolicyVersion] = {}
        self._rounds: dict[int, RoundStats] = {}
        self._found = Findings()
        self._num_capped = 0
        self._num_fallback = 0
        self._num_dead_letters = 0

    def apply(self, delivery: Delivery[Any]) -> None:
        """Takes one delivery in; records without a law are passed over."""
        record = delivery.record
        match record:
            case RolloutRequest():
                self._apply_request(record)
            case Verdict():
                self._apply_verdict(record)
            case Group():
                self._trail(record.group_id).num_groups += 1
                self._apply_members(record.members)
            case GradedGroup():
                self._trail(record.group_id).num_graded += 1
            case GroupAdvantages():
                self._apply_advantages(record)
            case Outcome():
                self._apply_outcome(record)
            case PolicyVersion():
                self._apply_version(record)
            case DeadLetter():
                self._num_dead_letters += 1

    def report(self, ranges: Ranges | None = None, *, is_in_flight_allowed: bool = False) -> AuditReport:
        """Findings and counts over all that was applied.

        `ranges`: where the logs begin and end; without it references are not checked. In-flight groups are part of the
        conservation law while a run goes on; after the planned end they are a finding, unless allowed.
        """
        found = self._found.copy()
        tally = self._tally(found)
        self._check_ranges(ranges, found)
        is_ended = self._lineage.newest is not None and self._lineage.newest.is_last
        num_ended = sum(tally.ended.values())
        if tally.num_requested != num_ended + tally.num_in_flight:
            got = f"{num_ended} ended and {tally.num_in_flight} in flight"
            found.add(f"conservation: expected {tally.num_requested} requested groups, got {got}")
        if is_ended and tally.num_in_flight and not is_in_flight_allowed:
            got = f"{tally.num_in_flight}; wait until the run has ended"
            found.add(f"in flight: expected no group at the planned end, got {got}")
        return AuditReport(
            findings=found.texts(),
            num_requested=tally.num_requested,
            num_trained=tally.ended.get(("trained", ""), 0),
            num_evaluated=tally.ended.get(("evaluated", ""), 0),
            dropped={reason: count for (kind, reason), count in sorted(tally.ended.items()) if kind == "dropped"},
            num_in_flight=tally.num_in_flight,
            num_superseded=tally.num_superseded,
            num_capped=self._num_capped,
            num_fallback=self._num_fallback,
            num_dead_letters=self._num_dead_letters,
            rounds=dict(sorted(self._rounds.items())),
            policy_version=self._lineage.newest.version if self._lineage.newest else -1,
            is_ended=is_ended,
        )

    def _tally(self, found: Findings) -> Tally:
        """Counts the groups by how they ended; adds what is wrong with any."""
        tally = Tally()
        endings = list(self._endings)
        survives = [not ending.run_id or self._lineage.survives(ending.run_id, ending.step) for ending in endings]
        for group_id, trail in self._trails.items():
            surviving = [endings[place] for place in trail.outcomes if survives[place]]
            tally.add(trail, surviving)
            for text in broken_trail(trail, surviving):
                found.add(f"group {group_id}: {text}")
        return tally

    def _trail(self, group_id: str) -> Trail:
        trail = self._trails.get(group_id)
        if trail is None:
            trail = self._trails[group_id] = Trail()
        return trail

    def _apply_request(self, request: RolloutRequest) -> None:
        trail = self._trail(request.group_id)
        bit = 1 << request.sample_index
        if trail.requests & bit:
            self._found.add(f"group {request.group_id}: expected one request of sample {request.sample_index}, got two")
        if trail.group_size not in (0, request.group_size) or request.sample_index >= request.group_size:
            what = f"sample {request.sample_index} of {request.group_size}"
            self._found.add(f"group {request.group_id}: expected requests of one size, got {what}")
        trail.requests |= bit
        trail.group_size = request.group_size
        trail.is_evaluation = request.purpose == "evaluation"

    def _apply_verdict(self, verdict: Verdict) -> None:
        trail = self._trail(verdict.group_id)
        bit = 1 << verdict.sample_index
        if trail.verdicts & bit:
            self._found.add(f"group {verdict.group_id}: expected one verdict of sample {verdict.sample_index}, got two")
        trail.verdicts |= bit
        self._apply_members([verdict])

    def _apply_members(self, members: Iterable[Verdict]) -> None:
        for member in members:
            self._refer(member.request, member.trajectory, member.tokens)

    def _apply_advantages(self, group: GroupAdvantages) -> None:
        self._trail(group.group_id).num_advantages += 1
        self._num_capped += group.was_capped
        self._num_fallback += bool(group.fallback)
        for text in broken_laws(group):
            self._found.add(text)
        for member in group.members:
            self._refer(member.trajectory, member.tokens)

    def _apply_outcome(self, outcome: Outcome) -> None:
        for text in broken_outcome(outcome):
            self._found.add(f"outcome of {outcome.group_id}: {text}")
        ending = Ending(kind=outcome.kind, reason=outcome.reason, run_id=outcome.run_id, step=outcome.step)
        place = self._endings.setdefault(ending, len(self._endings))
        self._trail(outcome.group_id).outcomes += (place,)
        if outcome.kind == "evaluated":
            stats = self._rounds.setdefault(outcome.step, RoundStats())
            stats.num_groups += 1
            stats.num_attempts += outcome.num_requested
            stats.num_valid += outcome.num_valid
            stats.num_passed += outcome.num_passed
            stats.num_clean += outcome.num_clean
            stats.num_sampled_tokens += outcome.num_sampled_tokens

    def _apply_version(self, version: PolicyVersion) -> None:
        before = self._newest_of_run.get(version.run_id)
        for text in broken_version(version, before):
            self._found.add(f"policy version {version.run_id}/{version.version}: {text}")
        self._newest_of_run[version.run_id] = version
        self._lineage.observe(version)

    def _refer(self, *refs: LogRef | None) -> None:
        for ref in refs:
            if ref is not None:
                place = (ref.topic, ref.partition)
                known = self._furthest.get(place)
                if known is None or known.offset < ref.offset:
                    self._furthest[place] = ref

    def _check_ranges(self, ranges: Ranges | None, found: Findings) -> None:
        if ranges is None:
            return
        for place, ref in sorted(self._furthest.items()):
            begin, end = ranges.get(place, (0, 0))
            if not 0 <= ref.offset < end:
                found.add(f"reference {ref}: expected an offset in the log [{begin}, {end}), got one outside")
