"""The audit: a pure fold over the topics of a run, and what it holds against them.

In: deliveries, in log order per partition, up to ends that were asked for downstream first: so nothing downstream is older than
what the audit knows of it. `rollout-requests` come first: what refers to them is checked against what has been read. Out: an
`AuditResult`. Laws: see `gagar.audit.findings.Law`; above all, every requested group ends with exactly one outcome in the
surviving lineage, and requested = trained + dropped + evaluated + in flight. Kept: a trail for each group
(`gagar.audit.trails`, in bounded memory), sums for each evaluation round, a few numbers for each start of the learner, a sample
of references.

Time is the newest record's, so that a run that was stopped is not overdue; and the clock's while a stage of it is at work, so
that one that has stalled is.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from gagar.audit.advantage_laws import broken_laws
from gagar.audit.attempt_laws import broken_times
from gagar.audit.findings import Finding, Findings, Law
from gagar.audit.group_laws import broken_answers, broken_outcome, broken_staleness, broken_trail, is_retired
from gagar.audit.lengths import Lengths
from gagar.audit.references import Claim, Ranges, Resolver
from gagar.audit.result import AuditResult, Tally
from gagar.audit.trails import Ending, Trail, Trails
from gagar.audit.version_laws import Versions
from gagar.groups.rounds import Round
from gagar.records import (
    AttemptFacts,
    DeadLetter,
    GradedGroup,
    Group,
    GroupAdvantages,
    LogRef,
    MemberAdvantage,
    Outcome,
    PolicyVersion,
    RolloutRequest,
    Trajectory,
    Verdict,
)
from gagar.stream.handlers import Delivery

OVERDUE_MARGIN_S = 600.0
"""Beyond deadline and grace: for grader and advantage publisher, and for a stage's restart."""


class AuditTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit holds a run to, beyond what the records say."""

    max_staleness: float = math.inf
    """`training.max_staleness`."""
    grace_s: float = math.inf
    """`gatherer.grace_s`."""
    since: float = 0.0
    """Groups requested before are left out, and so is everything of a group whose request was not seen."""
    now: float = 0.0
    """Unix seconds, of a run with a stage at work; 0 of any other."""


class Audit:
    """The fold. `apply` each delivery once, then `result`."""

    def __init__(self, terms: AuditTerms | None = None, ranges: Ranges | None = None, trails: Trails | None = None) -> None:
        """`ranges`: where the logs begin and end; without it references are not checked, and no log counts as cut."""
        self._terms = terms or AuditTerms()
        self._resolver = Resolver(ranges)
        self._trails = trails or Trails()
        self._versions = Versions()
        self._rounds: dict[int, Round] = {}
        self._found = Findings()
        self._now = self._terms.now
        self._num_capped = 0
        self._num_fallback = 0
        self._num_dead_letters = 0
        self._apply_by: dict[type, Callable[[Trail, Any, LogRef], None]] = {
            Trajectory: self._apply_trajectory,
            Verdict: self._apply_verdict,
            Group: self._apply_group,
            GradedGroup: self._apply_graded,
            GroupAdvantages: self._apply_advantages,
            Outcome: self._apply_outcome,
        }

    def apply(self, delivery: Delivery[Any]) -> None:
        """Takes one delivery in; records without a law are passed over."""
        self._now = max(self._now, delivery.at)
        record, source = delivery.record, delivery.ref
        if isinstance(record, RolloutRequest):
            self._apply_request(record, source, delivery.at)
        elif isinstance(record, PolicyVersion):
            self._apply_version(record, source)
        elif isinstance(record, DeadLetter) and record.retried_as is None:
            self._num_dead_letters += delivery.at >= self._terms.since
            self._apply_letter(record)
        elif (apply := self._apply_by.get(type(record))) and (trail := self._trail(record.group_id, source)):
            apply(trail, record, source)

    def claims(self) -> list[Claim]:
        """The references to follow."""
        return self._resolver.sample.claims()

    def hold(self, finding: Finding) -> None:
        """Adds what was found where references point."""
        self._found.add(finding)

    def retire(self, later: Ranges) -> None:
        """The logs as they are after all was applied: what retention has taken meanwhile may never have been seen."""
        self._resolver.retire(later)

    def result(self, *, is_in_flight_allowed: bool = False) -> AuditResult:
        """Findings and counts over all that was applied.

        In-flight groups are part of the conservation law while a run goes on; after the planned end they are a finding,
        unless allowed.
        """
        found, newest = copy.deepcopy(self._found), self._versions.lineage.newest
        with Lengths() as lengths:
            tally = self._tally(found, lengths)
            tenths = lengths.tenths()
        found.add_all(tally.broken_conservation())
        is_ended = newest is not None and newest.is_last
        if is_ended and tally.num_in_flight and not is_in_flight_allowed:
            got = f"{tally.num_in_flight}; wait until the run has ended"
            found.add(Finding(Law.ENDED_AT_END, f"in flight: expected no group at the planned end, got {got}"))
        return AuditResult(
            findings=found.texts,
            broken=found.counts,
            since=self._terms.since,
            num_requested=tally.num_requested,
            num_trained=tally.ended["trained", ""],
            num_evaluated=tally.ended["evaluated", ""],
            dropped={reason: count for (kind, reason), count in sorted(tally.ended.items()) if kind == "dropped"},
            num_in_flight=tally.num_in_flight,
            overdue=dict(tally.overdue),
            num_superseded=tally.num_superseded,
            num_retired=tally.num_retired,
            tenths=tenths,
            num_never_begun=tally.num_never_begun,
            num_capped=self._num_capped,
            num_fallback=self._num_fallback,
            num_dead_letters=self._num_dead_letters,
            num_references=self._resolver.num_references,
            num_retired_references=self._resolver.num_retired,
            num_followed=len(self.claims()),
            rounds=dict(sorted(self._rounds.items())),
            policy_version=newest.version if newest else -1,
            is_ended=is_ended,
            is_at_work=bool(self._terms.now),
        )

    def _tally(self, found: Findings, lengths: Lengths) -> Tally:
        """Counts the groups by how they ended, and their attempts; adds what is wrong with any."""
        tally = Tally(lengths)
        for group_id, trail in self._trails:
            surviving = [ending for ending in trail.endings if self._survives(ending)]
            cut, what = self._resolver.cut(trail.partition), f"group {group_id}"
            tally.add(trail, surviving, is_retired=is_retired(trail, cut))
            found.add_all(broken_trail(trail, surviving, cut), what)
            found.add_all(broken_staleness(trail, self._terms.max_staleness), what)
            found.add_all(self._broken_steps(trail), what)
            late_s = self._now - trail.deadline - self._terms.grace_s - OVERDUE_MARGIN_S
            if trail.asked and late_s > 0:
                broken = broken_answers(trail, cut) if surviving else self._broken_deadline(trail, late_s, tally)
                found.add_all(broken, what)
        return tally

    def _survives(self, ending: Ending) -> bool:
        return not ending.run_id or self._versions.lineage.survives(ending.run_id, ending.step)

    def _broken_steps(self, trail: Trail) -> Iterator[Finding]:
        for ending in trail.endings:
            if ending.kind == "trained" and not self._versions.holds(ending.run_id, ending.step):
                yield Finding(Law.TRAINED_INTO_VERSION, f"expected a policy version of that run and step, got none: {ending}")

    def _broken_deadline(self, trail: Trail, late_s: float, tally: Tally) -> Iterator[Finding]:
        """A group in flight, so many seconds late. One that waits for its step is in the learner's hands, however long a step
        takes."""
        tally.overdue[trail.reached] += 1
        if trail.reached != "advantages":
            text = f"expected an end {late_s:.0f} s ago, got none; it stands on {trail.reached}"
            yield Finding(Law.OVERDUE, text)

    def _trail(self, group_id: str, source: LogRef) -> Trail | None:
        """None for a group that was requested too early, as far as this audit knows."""
        return self._trails.find(group_id) if self._terms.since else self._trails.open(group_id, source.partition)

    def _apply_request(self, request: RolloutRequest, source: LogRef, at: float) -> None:
        if at < self._terms.since:
            return
        trail, index = self._trails.open(request.group_id, source.partition), request.sample_index
        if index in trail.asked:
            self._hold(Law.REQUESTED_ONCE, f"group {request.group_id}: expected one request of sample {index}, got two")
        if trail.group_size not in (0, request.group_size) or index >= request.group_size:
            text = f"group {request.group_id}: expected requests of one size, got sample {index} of {request.group_size}"
            self._hold(Law.REQUESTED_IN_ONE_SIZE, text)
        trail.asked.setdefault(index, source.offset)
        trail.group_size = request.group_size
        trail.is_evaluation = request.purpose == "evaluation"
        trail.deadline = max(trail.deadline, at + request.deadline_s)
        trail.agent_timeout_s = request.agent_timeout_s

    def _apply_letter(self, letter: DeadLetter) -> None:
        """A request or a trajectory that nobody can read was one all the same; its letter tells of it."""
        trail = self._trails.find(letter.key.decode("utf-8", "replace"))
        if trail is not None and letter.source.topic == "rollout-requests":
            trail.rejected.add(letter.source.offset)
        elif trail is not None and letter.source.topic == "trajectories":
            trail.unreadable.add(letter.source.offset)

    def _apply_trajectory(self, trail: Trail, trajectory: Trajectory, source: LogRef) -> None:
        index, attempt = trajectory.sample_index, trajectory.attempt
        what = f"group {trajectory.group_id}"
        if index in trail.trajectories:
            self._hold(Law.TRAJECTORY_ONCE, f"{what}: expected one trajectory of sample {index}, got two")
        trail.trajectories.setdefault(index, source.offset)
        if attempt.tokens is not None:
            trail.tokens.setdefault(index, attempt.tokens.offset)
        elif attempt.num_sampled_tokens:
            text = f"{what}: expected a reference to the {attempt.num_sampled_tokens} tokens of sample {index}, got none"
            self._hold(Law.TRAJECTORY_TOKENS, text)
        if trajectory.infrastructure:
            trail.broken_off.add(index)
        if attempt.num_sampled_tokens or not trajectory.infrastructure:
            trail.own_s.setdefault(index, trajectory.times.agent_s)
        self._found.add_all(broken_times(trajectory, trail.agent_timeout_s), what)
        self._check_attempt(trail, Claim(attempt.request, trajectory.group_id, index), attempt, source)

    def _apply_verdict(self, trail: Trail, verdict: Verdict, source: LogRef) -> None:
        if verdict.sample_index in trail.broken_off and verdict.status != "invalid":
            what = f"group {verdict.group_id}: expected sample {verdict.sample_index}, which the infrastructure ended, invalid"
            self._hold(Law.VERDICT_INVALID, f"{what}, got it {verdict.status}")
        if verdict.sample_index in trail.verdicts:
            text = f"group {verdict.group_id}: expected one verdict of sample {verdict.sample_index}, got two"
            self._hold(Law.VERDICT_ONCE, text)
        trail.verdicts.add(verdict.sample_index)
        self._check_member(trail, verdict.group_id, verdict, source)

    def _apply_group(self, trail: Trail, group: Group, source: LogRef) -> None:
        trail.num_groups += 1
        trail.members.update(member.sample_index for member in group.members)
        for member in group.members:
            self._check_member(trail, group.group_id, member, source)

    def _apply_graded(self, trail: Trail, graded: GradedGroup, source: LogRef) -> None:
        trail.num_graded += 1
        for member in graded.group.members:
            self._check_member(trail, graded.group.group_id, member, source)

    def _apply_advantages(self, trail: Trail, group: GroupAdvantages, source: LogRef) -> None:
        trail.num_advantages += 1
        # As consumers.learner.plan.oldest_version: tokens that were given are nobody's.
        sampled = (member.attempt.policy_version_min for member in group.members if member.attempt.num_sampled_tokens > 0)
        trail.oldest_version = min(sampled, default=-1)
        self._num_capped += group.was_capped
        self._num_fallback += bool(group.fallback)
        self._found.add_all(broken_laws(group), f"advantages of {group.group_id}")
        for member in group.members:
            self._check_member(trail, group.group_id, member, source)

    def _apply_outcome(self, trail: Trail, outcome: Outcome, source: LogRef) -> None:
        self._found.add_all(broken_outcome(outcome), f"outcome of {outcome.group_id}")
        trail.endings.append(
            Ending(
                kind=outcome.kind,
                reason=outcome.reason,
                run_id=outcome.run_id,
                step=outcome.step,
                staleness=outcome.staleness,
            )
        )
        if outcome.kind == "evaluated":
            self._rounds.setdefault(outcome.step, Round(step=outcome.step)).add(outcome)

    def _apply_version(self, version: PolicyVersion, source: LogRef) -> None:
        what = f"policy version {version.run_id}/{version.version}"
        self._found.add_all(self._versions.observe(version, source.offset), what)

    def _check_member(self, trail: Trail, group_id: str, member: Verdict | MemberAdvantage, source: LogRef) -> None:
        """A verdict, its copy in a group, or an advantage: does it refer to what it should?"""
        claim = Claim(member.trajectory, group_id, member.sample_index)
        self._check_place(Law.TRAJECTORY_REFERENCE, trail, trail.trajectories, claim, source)
        self._found.add_all(self._resolver.broken(claim, source))
        self._check_attempt(trail, claim, member.attempt, source)

    def _check_attempt(self, trail: Trail, of: Claim, attempt: AttemptFacts, source: LogRef) -> None:
        """The references that all records of one attempt share."""
        request = of._replace(ref=attempt.request)
        self._check_place(Law.REQUEST_REFERENCE, trail, trail.asked, request, source)
        self._found.add_all(self._resolver.broken(request, source, is_followed=False))
        if attempt.tokens is not None:
            tokens = of._replace(ref=attempt.tokens)
            self._check_place(Law.TOKENS_REFERENCE, trail, trail.tokens, tokens, source)
            self._found.add_all(self._resolver.broken(tokens, source))

    def _check_place(self, law: Law, trail: Trail, places: Mapping[int, int], claim: Claim, source: LogRef) -> None:
        """A reference to a record that the audit has read, or has read of."""
        offset = places.get(claim.sample_index)
        if offset is not None and (claim.ref.partition, claim.ref.offset) != (trail.partition, offset):
            what = f"{law.value.removesuffix(' reference')} of sample {claim.sample_index} of group {claim.group_id}"
            self._hold(law, f"{source}: expected the {what} at offset {offset}, got {claim.ref}")

    def _hold(self, law: Law, text: str) -> None:
        self._found.add(Finding(law, text))
