"""The records that the learner writes, made of what it knows. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from consumers.learner.plan import oldest_version
from gagar.errors import ConfigError
from gagar.groups.lineage import Lineage
from gagar.records import DropReason, GroupAdvantages, LineageEntry, MemberAdvantage, Outcome, PolicyVersion
from gagar.training.checkpoint import CheckpointState


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which run this is: a new one at each start."""

    run_id: str
    lineage: list[LineageEntry] = []
    """Earlier runs that this one continues, oldest first."""


def trained(group: GroupAdvantages, run_id: str, step: int, at: float) -> Outcome:
    """Outcome of a group of step `step`, trained from version `step - 1`; tokens of an abandoned future count as fresh."""
    return _outcome(group, run_id=run_id, step=step, at=at, staleness=max(0, step - 1 - oldest_version(group)))


def dropped(group: GroupAdvantages, reason: DropReason, run_id: str, step: int, at: float) -> Outcome:
    """Outcome of a group that is not trained; `step` is the one in the making, so it is superseded with that step."""
    return _outcome(group, run_id=run_id, step=step, at=at, reason=reason)


def _outcome(
    group: GroupAdvantages, *, run_id: str, step: int, at: float, reason: DropReason = "", staleness: int = -1
) -> Outcome:
    versions = [member.attempt.policy_version_max for member in group.members]
    return Outcome(
        group_id=group.group_id,
        task_id=group.task_id,
        purpose="training",
        kind="dropped" if reason else "trained",
        reason=reason,
        run_id=run_id,
        step=step,
        policy_version_min=oldest_version(group),
        policy_version_max=max(versions, default=-1),
        staleness=staleness,
        num_requested=group.num_requested,
        num_valid=group.num_valid,
        num_passed=group.num_passed,
        num_clean=group.num_clean,
        num_sampled_tokens=group.num_sampled_tokens,
        at=at,
    )


def batch_metrics(groups: Sequence[GroupAdvantages], step: int) -> dict[str, float]:
    """What a batch is like, for `PolicyVersion.metrics`."""
    members = [member for group in groups for member in group.members]
    staleness = [max(0, step - 1 - oldest_version(group)) for group in groups]
    return {
        "num_groups": float(len(groups)),
        "num_trajectories": float(len(members)),
        "staleness_mean": _mean(staleness),
        "staleness_max": float(max(staleness)),
        "rescale_mean": _mean([group.rescale for group in groups]),
        "capped_fraction": _mean([group.was_capped for group in groups]),
        "ungraded_fraction": _mean([bool(group.fallback) for group in groups]),
        **_member_metrics(members),
    }


def _member_metrics(members: Sequence[MemberAdvantage]) -> dict[str, float]:
    return {
        "version_span_max": float(
            max(member.attempt.policy_version_max - member.attempt.policy_version_min for member in members)
        ),
        "reward_mean": _mean([member.reward for member in members]),
        "weight_mean": _mean([member.weight for member in members]),
        **_advantage_metrics([member.advantage for member in members]),
    }


def _advantage_metrics(advantages: Sequence[float]) -> dict[str, float]:
    mean = _mean(advantages)
    return {
        "advantage_mean": mean,
        "advantage_std": _mean([(value - mean) ** 2 for value in advantages]) ** 0.5,
        "advantage_min": min(advantages),
        "advantage_max": max(advantages),
        "zero_advantage_fraction": _mean([value == 0 for value in advantages]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that are numbers; a record carries no NaN."""
    return {name: value for name, value in metrics.items() if value - value == 0}


class PastOutcomes:
    """What the outcomes of a run, in log order, mean to one that goes on from `lineage` at `step`. Kept: no outcome."""

    def __init__(self, step: int, lineage: Sequence[LineageEntry]) -> None:
        self.replay: dict[str, int] = {}
        """group_id -> step of the groups that an abandoned future trained after `step`."""
        self.ended: set[str] = set()
        """Groups that must not be trained again: their outcome is the work of a step that counts."""
        self._step = step
        self._last_steps = {entry.run_id: entry.last_step for entry in lineage}

    def observe(self, outcome: Outcome) -> None:
        """Takes the next one in."""
        self.replay.pop(outcome.group_id, None)
        if outcome.kind == "trained" and outcome.step > self._step:
            self.replay[outcome.group_id] = outcome.step
        if outcome.run_id in self._last_steps and outcome.step <= self._last_steps[outcome.run_id]:
            self.ended.add(outcome.group_id)


def check_untrained(versions: Sequence[PolicyVersion], checkpoints: Path) -> None:
    """Raises ConfigError for a run that has trained steps, which a learner without a checkpoint would abandon."""
    newest = max(versions, key=lambda version: version.step, default=None)
    if newest is not None and newest.step > 0:
        raise ConfigError(
            f"checkpoints of run.name in {checkpoints}: expected one, since this run has been trained up to step {newest.step} "
            f"(its policies are below {Path(newest.location).parents[1]}), got none; start where they are, bring them here, "
            "take another run.name, or abandon those steps with --set learner.start_over=true"
        )


def identify(run_id: str, base: CheckpointState, versions: Sequence[PolicyVersion]) -> RunIdentity:
    """The run that starts from `base`, after those that published `versions`: of the checkpoint's lineage, or, without a
    checkpoint, of the first policies of those before. Raises ConfigError for a checkpoint of an abandoned future: outcomes that
    superseded its steps may have taken theirs out of the compacted log."""
    known = Lineage()
    for version in versions:
        known.observe(version)
    newest = known.newest
    if base.run_id:
        if newest is not None and not known.survives(base.run_id, base.step):
            raise ConfigError(
                f"checkpoint of run {base.run_id} step {base.step}: expected one that run {newest.run_id} descends from or "
                "wrote, got one of an abandoned future; take the newest that it names, or another run.name to start over"
            )
        return RunIdentity(run_id=run_id, lineage=[*base.lineage, LineageEntry(run_id=base.run_id, last_step=base.step)])
    return RunIdentity(run_id=run_id, lineage=_first_policies(newest) if newest else [])


def _first_policies(newest: PolicyVersion) -> list[LineageEntry]:
    """What is left of a lineage of which every step is abandoned: the runs that began with the initial policy."""
    entries = [*newest.lineage, LineageEntry(run_id=newest.run_id, last_step=newest.step)]
    num = next((place for place, entry in enumerate(entries, 1) if entry.last_step > 0), len(entries))
    return [LineageEntry(run_id=entry.run_id, last_step=0) for entry in entries[:num]]
