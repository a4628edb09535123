"""How `gagar audit` tells its report: lines for people, one object for programs."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from gagar.audit.result import AuditReport


def as_object(report: AuditReport) -> dict[str, Any]:
    """The report as one JSON object."""
    rounds = {
        str(step): {**msgspec.structs.asdict(stats), "pass_rate": stats.pass_rate, "clean_share": stats.clean_share}
        for step, stats in report.rounds.items()
    }
    return {"is_clean": report.is_clean, **msgspec.structs.asdict(report), "rounds": rounds}


def as_lines(report: AuditReport) -> Iterator[str]:
    """The report for people."""
    yield from _groups(report)
    yield f"references {report.num_references} checked, {report.num_followed} of them followed"
    if report.num_retired_references:
        yield f"           {report.num_retired_references} to records that retention has taken"
    if report.num_dead_letters:
        yield f"dead       {report.num_dead_letters} dead letters"
    for step, stats in report.rounds.items():
        shares = f"pass rate {stats.pass_rate:.3f}, clean {stats.clean_share:.3f}"
        yield f"round at step {step}: {stats.num_valid}/{stats.num_attempts} valid attempts, {shares}"
    yield from (f"finding: {text}" for text in report.findings)
    yield "clean" if report.is_clean else f"not clean: {sum(report.broken.values())} findings"


def _groups(report: AuditReport) -> Iterator[str]:
    if report.since:
        yield f"since      {datetime.fromtimestamp(report.since, UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield f"requested  {report.num_requested}"
    yield f"trained    {report.num_trained}"
    yield f"advantages {report.num_capped} groups capped, {report.num_fallback} kept as GRPO gives them"
    yield f"evaluated  {report.num_evaluated}"
    yield f"dropped    {report.num_dropped}{_by(report.dropped)}"
    yield f"in flight  {report.num_in_flight}"
    if report.overdue:
        yield f"overdue    {sum(report.overdue.values())}{_by(report.overdue)}"
    if report.num_superseded:
        yield f"superseded {report.num_superseded} outcomes of steps that the learner went back on"
    if report.num_retired:
        yield f"retired    {report.num_retired} groups of which retention has taken requests"


def _by(counts: dict[str, int]) -> str:
    """Example: ` (all_failed 3, stale 1)`."""
    return f" ({', '.join(f'{name} {count}' for name, count in counts.items())})" if counts else ""
