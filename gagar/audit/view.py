"""An audit's result as `gagar audit` prints it: lines for people, or one object for programs."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from gagar.audit.lengths import Tenth, bias_of
from gagar.audit.result import AuditResult

ROUND_KEYS = (
    *("num_groups", "num_attempts", "num_valid", "num_passed", "num_clean", "num_sampled_tokens"),
    *("pass_rate", "quality"),
)


def as_object(result: AuditResult) -> dict[str, Any]:
    """The result as one JSON object."""
    rounds = {str(step): {name: getattr(sums, name) for name in ROUND_KEYS} for step, sums in result.rounds.items()}
    return {"is_clean": result.is_clean, **msgspec.structs.asdict(result), "rounds": rounds}


def as_lines(result: AuditResult) -> Iterator[str]:
    """The result for people."""
    yield from _groups(result)
    yield from _lengths(result)
    yield f"references {result.num_references} checked, {result.num_followed} of them followed"
    if result.num_retired_references:
        yield f"           {result.num_retired_references} to records that retention has taken"
    if result.num_dead_letters:
        yield f"dead       {result.num_dead_letters} dead letters"
    for step, sums in result.rounds.items():
        shares = f"pass rate {sums.pass_rate or 0:.3f}, clean {sums.quality or 0:.3f}"
        yield f"round at step {step}: {sums.num_valid}/{sums.num_attempts} valid attempts, {shares}"
    yield from (f"finding: {text}" for text in result.findings)
    yield "clean" if result.is_clean else f"not clean: {sum(result.broken.values())} findings"


def _groups(result: AuditResult) -> Iterator[str]:
    if result.since:
        yield f"since      {datetime.fromtimestamp(result.since, UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield f"requested  {result.num_requested}"
    yield f"trained    {result.num_trained}"
    yield f"advantages {result.num_capped} groups capped, {result.num_fallback} kept as GRPO gives them"
    yield f"evaluated  {result.num_evaluated}"
    yield f"dropped    {result.num_dropped}{_by(result.dropped)}"
    yield f"in flight  {result.num_in_flight}"
    if result.num_in_flight and not (result.is_at_work or result.is_ended):
        yield "paused     no stage is at work, so nothing counts as overdue after the newest record"
    if result.overdue:
        yield f"overdue    {sum(result.overdue.values())}{_by(result.overdue)}"
    if result.num_superseded:
        yield f"superseded {result.num_superseded} outcomes of steps that the learner went back on"
    if result.num_retired:
        yield f"retired    {result.num_retired} groups of which retention has taken requests"


def _lengths(result: AuditResult) -> Iterator[str]:
    """What became of attempts by the length of their own work, where any was lost."""
    if result.num_never_begun:
        yield f"waited     {result.num_never_begun} attempts until their deadline: invalid, no length"
    if any(tenth.num_lost for tenth in result.tenths):
        yield "attempts   by tenths, the shortest own work first:"
        yield from map(_tenth, result.tenths)
    if bias := bias_of(result.tenths):
        rates = f"{bias.longest:.1%} of the longest tenth came to nothing, {bias.others:.1%} of the others"
        yield f"bias       {rates}: long attempts are missing; see training.rollout_deadline_s and max_staleness"


def _tenth(tenth: Tenth) -> str:
    invalid, dropped = tenth.num_invalid / tenth.num_attempts, tenth.num_dropped / tenth.num_attempts
    rates = f"{invalid:.1%} invalid, {dropped:.1%} dropped"
    return f"           up to {tenth.up_to_s:.2f} s: {rates}, of {tenth.num_attempts}"


def _by(counts: dict[str, int]) -> str:
    """Example: ` (all_failed 3, stale 1)`."""
    return f" ({', '.join(f'{name} {count}' for name, count in counts.items())})" if counts else ""
