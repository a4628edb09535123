"""Progress of a run: a pure fold of the deliveries of its topics into a snapshot, which live view and report both read.

In: deliveries of any topic, in log order per partition. Out: `Snapshot`. Kept: sums per policy version, per step and per
evaluation round; nothing per attempt or group, so memory grows with steps only.
Not promised: the conservation law; that is for `gagar.audit.fold`, which sees every group.

A restarted learner goes back to a checkpoint under a new run id. Steps that its lineage does not name are superseded: their
groups, trained on or dropped then, count as in flight again until the surviving run ends them.
"""

from collections import Counter
from typing import Any

import msgspec

from gagar.groups.lineage import Lineage
from gagar.groups.rounds import Round, ratio
from gagar.records import DeadLetter, Outcome, PolicyVersion, RolloutRequest, Verdict
from gagar.stream.handlers import Delivery


class AttemptSums(msgspec.Struct, kw_only=True):
    """Sums over training attempts whose newest token one policy version sampled."""

    version: int
    num_valid: int = 0
    num_passed: int = 0
    num_clean: int = 0
    """Passing attempts without dead statement or edit outside the task."""
    num_with_dead_code: int = 0
    """Passing attempts with dead statements."""
    num_out_of_scope: int = 0
    """Passing attempts with edits outside the task."""
    num_sampled_tokens: int = 0

    def add(self, verdict: Verdict) -> None:
        if verdict.status == "invalid":
            return
        self.num_valid += 1
        self.num_sampled_tokens += verdict.attempt.num_sampled_tokens
        if verdict.status == "passed":
            self.num_passed += 1
            self.num_clean += verdict.measures.is_clean
            self.num_with_dead_code += verdict.measures.num_dead_statements > 0
            self.num_out_of_scope += verdict.measures.num_files_out_of_scope > 0


class Step(msgspec.Struct, kw_only=True):
    """One optimizer step of one learner run."""

    step: int
    num_groups: int = 0
    """Trained on."""
    dropped: Counter[str] = msgspec.field(default_factory=Counter)
    """Groups that the learner dropped while it made the step, by reason."""
    staleness_sum: int = 0
    staleness_max: int = 0
    metrics: dict[str, float] = {}
    """Of its policy version; empty until that is published."""
    at: float = 0.0

    def add(self, outcome: Outcome) -> None:
        if outcome.kind == "dropped":
            self.dropped[outcome.reason] += 1
            return
        self.num_groups += 1
        self.staleness_sum += max(outcome.staleness, 0)
        self.staleness_max = max(self.staleness_max, outcome.staleness)

    @property
    def staleness(self) -> float | None:
        """Mean over its groups."""
        return ratio(self.staleness_sum, self.num_groups)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run at one moment; lists are sorted by version or step."""

    num_requested: int
    """Groups, of both purposes."""
    num_trained: int
    num_evaluated: int
    num_superseded: int
    """Outcomes of steps that a restarted learner left behind; in no other count."""
    dropped: dict[str, int]
    """Groups by reason."""
    attempts: list[AttemptSums]
    rounds: list[Round]
    steps: list[Step]
    records: dict[str, int]
    """Records seen, by topic."""
    num_restarts: int
    """Learner runs beyond the first."""
    version: int
    """Newest policy version; -1 before the first."""
    step: int
    is_last: bool
    """The newest version is the planned end."""
    num_dead_letters: int
    first_at: float
    """Broker time of the oldest and the newest record seen; 0 before the first."""
    last_at: float

    @property
    def num_dropped(self) -> int:
        return sum(self.dropped.values())

    @property
    def num_in_flight(self) -> int:
        return self.num_requested - self.num_trained - self.num_evaluated - self.num_dropped

    @property
    def newest_trained(self) -> Step | None:
        """The newest step whose groups are known: a version may be read before the outcomes of its step."""
        return next((s for s in reversed(self.steps) if s.num_groups), None)

    @property
    def metrics(self) -> dict[str, float]:
        """Of the newest step that has any."""
        return next((s.metrics for s in reversed(self.steps) if s.metrics), {})


class Progress:
    """The fold. `apply` each delivery once, `snapshot` when something is to be shown."""

    def __init__(self) -> None:
        self._attempts: dict[int, AttemptSums] = {}
        self._rounds: dict[int, Round] = {}
        self._steps: dict[str, dict[int, Step]] = {}
        """By learner run, by step."""
        self._dropped: Counter[str] = Counter()
        self._lineage = Lineage()
        self._run_ids: set[str] = set()
        self._records: Counter[str] = Counter()
        self._num_requested = 0
        self._num_dead_letters = 0
        self._first_at = 0.0
        self._last_at = 0.0

    def apply(self, delivery: Delivery[Any]) -> None:
        """Takes one delivery in; records that say nothing about progress are counted only."""
        topic, record = delivery.ref.topic, delivery.record
        self._records[topic] += 1
        self._first_at = min(self._first_at or delivery.at, delivery.at)
        self._last_at = max(self._last_at, delivery.at)
        if isinstance(record, RolloutRequest):
            self._num_requested += record.sample_index == 0
        elif isinstance(record, Verdict):
            self._apply_verdict(record)
        elif isinstance(record, Outcome):
            self._apply_outcome(record)
        elif isinstance(record, PolicyVersion):
            self._apply_version(record, delivery.at)
        elif isinstance(record, DeadLetter):
            self._num_dead_letters += record.retried_as is None

    @property
    def num_records(self) -> int:
        """Deliveries taken in, of all topics."""
        return self._records.total()

    def _apply_verdict(self, verdict: Verdict) -> None:
        if verdict.purpose == "training":
            version = verdict.attempt.policy_version_max
            self._attempts.setdefault(version, AttemptSums(version=version)).add(verdict)

    def _apply_outcome(self, outcome: Outcome) -> None:
        if outcome.kind == "evaluated":
            self._rounds.setdefault(outcome.step, Round(step=outcome.step)).add(outcome)
        elif outcome.run_id:
            self._step(outcome.run_id, outcome.step).add(outcome)
        else:
            self._dropped[outcome.reason] += 1

    def _apply_version(self, version: PolicyVersion, at: float) -> None:
        self._lineage.observe(version)
        self._run_ids.add(version.run_id)
        step = self._step(version.run_id, version.step)
        step.metrics, step.at = version.metrics, version.created_at or at

    def _step(self, run_id: str, step: int) -> Step:
        return self._steps.setdefault(run_id, {}).setdefault(step, Step(step=step))

    def _surviving(self) -> tuple[list[Step], int]:
        """The steps that count, and the number of outcomes of those that do not."""
        surviving, num_superseded = [], 0
        for run_id, steps in self._steps.items():
            for number, step in steps.items():
                if self._lineage.survives(run_id, number):
                    surviving.append(step)
                elif run_id in self._run_ids:
                    num_superseded += step.num_groups + step.dropped.total()
        return surviving, num_superseded

    def snapshot(self) -> Snapshot:
        """The state now; later deliveries do not change it."""
        steps, num_superseded = self._surviving()
        dropped = sum((step.dropped for step in steps), self._dropped)
        newest = self._lineage.newest
        return Snapshot(
            num_requested=self._num_requested,
            num_trained=sum(s.num_groups for s in steps),
            num_evaluated=sum(r.num_groups for r in self._rounds.values()),
            num_superseded=num_superseded,
            dropped=dict(sorted(dropped.items())),
            attempts=[msgspec.structs.replace(a) for _, a in sorted(self._attempts.items())],
            rounds=[msgspec.structs.replace(r) for _, r in sorted(self._rounds.items())],
            steps=_merged(steps),
            records=dict(self._records),
            num_restarts=max(len(self._run_ids) - 1, 0),
            version=newest.version if newest else -1,
            step=newest.step if newest else 0,
            is_last=newest is not None and newest.is_last,
            num_dead_letters=self._num_dead_letters,
            first_at=self._first_at,
            last_at=self._last_at,
        )


def _merged(steps: list[Step]) -> list[Step]:
    """Sorted sums, one for each number: a new run publishes the step that it resumed from once more."""
    merged: dict[int, Step] = {}
    for step in sorted(steps, key=lambda s: s.step):
        known = merged.setdefault(step.step, Step(step=step.step))
        known.num_groups += step.num_groups
        known.dropped += step.dropped
        known.staleness_sum += step.staleness_sum
        known.staleness_max = max(known.staleness_max, step.staleness_max)
        known.metrics = step.metrics or known.metrics
        known.at = max(known.at, step.at)
    return list(merged.values())


def recent(attempts: list[AttemptSums], num_attempts: int) -> AttemptSums:
    """Sums over the newest versions that hold at least `num_attempts` valid attempts together, or over all."""
    total = AttemptSums(version=-1)
    for sums in reversed(attempts):
        if total.num_valid >= num_attempts:
            break
        total = AttemptSums(
            version=max(total.version, sums.version),
            **{f: getattr(total, f) + getattr(sums, f) for f in AttemptSums.__struct_fields__ if f != "version"},
        )
    return total


def moving(attempts: list[AttemptSums], num_attempts: int) -> list[AttemptSums]:
    """Per version the sums over it and as many versions before it as hold `num_attempts` valid attempts together."""
    return [recent(attempts[: end + 1], num_attempts) for end in range(len(attempts))]
