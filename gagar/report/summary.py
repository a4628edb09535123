"""The figures of a run in one record: the last line of `gagar demo`, and the table of the report.

In: a snapshot and the audit's word. Out: `Summary`. Pure.
"""

import msgspec

from gagar.groups.rounds import Round
from gagar.report.progress import Snapshot


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are of the held-out tasks, from the evaluation rounds at the start and at the end; null without such a round."""

    steps: int
    groups_requested: int
    groups_trained: int
    groups_evaluated: int
    groups_dropped: dict[str, int]
    """By reason."""
    pass_rate_first: float | None
    pass_rate_last: float | None
    quality_first: float | None
    """Share of passing attempts without dead statement or edit outside the task."""
    quality_last: float | None
    policy_version: int
    audit: str
    """`clean`, or what is wrong."""
    run: str = ""
    seconds: float = 0.0
    attempts_first: int = 0
    """Valid attempts behind the rates of the first round."""
    attempts_last: int = 0
    peak_memory_bytes: int = 0
    """Largest sum of the resident sets of all processes, the broker's included."""
    report: str = ""
    """Path of the report; empty if none was written."""


def summarize(snapshot: Snapshot, run_name: str, audit: str, seconds: float = 0.0) -> Summary:
    """The summary of a run, finished or not."""
    none = Round(step=0)
    first, *others = snapshot.rounds or [none]
    last = others[-1] if others else none
    return Summary(
        steps=max(snapshot.step, 0),
        groups_requested=snapshot.num_requested,
        groups_trained=snapshot.num_trained,
        groups_evaluated=snapshot.num_evaluated,
        groups_dropped=snapshot.dropped,
        pass_rate_first=_rounded(first.pass_rate),
        pass_rate_last=_rounded(last.pass_rate),
        quality_first=_rounded(first.quality),
        quality_last=_rounded(last.quality),
        policy_version=snapshot.version,
        audit=audit,
        run=run_name,
        seconds=round(seconds, 1),
        attempts_first=first.num_valid,
        attempts_last=last.num_valid,
    )


def summary_rows(summary: Summary, rounds: list[Round]) -> list[tuple[str, str]]:
    """The summary for people: labels and values."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in summary.groups_dropped.items()) or "none"
    rows = [
        ("optimizer steps", str(summary.steps)),
        ("policy version", str(summary.policy_version)),
        ("groups requested", str(summary.groups_requested)),
        ("groups trained", str(summary.groups_trained)),
        ("groups evaluated", str(summary.groups_evaluated)),
        ("groups dropped", dropped),
        *((f"held-out tasks, step {r.step}", round_text(r)) for r in rounds),
        ("audit", summary.audit),
    ]
    if summary.seconds:
        rows.append(("time", f"{summary.seconds:.0f} s"))
    if summary.peak_memory_bytes:
        rows.append(("peak memory", f"{summary.peak_memory_bytes / 2**30:.1f} GiB"))
    return rows


def round_text(evaluation: Round) -> str:
    """Example: `pass 0.36 +-0.03 of 256 attempts, clean 0.34 of passing`."""
    rate, quality = evaluation.pass_rate, evaluation.quality
    if rate is None:
        return "no valid attempt"
    clean = f"clean {quality:.2f} of passing" if quality is not None else "nothing passed"
    return f"pass {rate:.2f} +-{evaluation.pass_error:.2f} of {evaluation.num_valid} attempts, {clean}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
