"""Histories of a step, a policy version and a task as dicts for JSON, and as tables for people.

In: `StepHistory`, `VersionHistory`, `TaskHistory`. Out: what `gagar show step`, `version` and `task` print.
"""

from collections.abc import Sequence
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from gagar.groups.rounds import Round
from gagar.history.group import ended_as
from gagar.history.group_view import fact, table
from gagar.history.plain import moment, one_line, plain, printable, told
from gagar.history.steps import KnownVersion, StepHistory, TaskHistory, VersionHistory
from gagar.records import Outcome
from gagar.stream.handlers import Delivery
from gagar.tasks.task import Task


def step_object(history: StepHistory) -> dict[str, Any]:
    """A step as one object."""
    return {
        "step": history.step,
        "has_ended": history.has_ended,
        "versions": [version_fields(version) for version in history.versions],
        "outcomes": [told(outcome) for outcome in history.outcomes],
        "evaluation": _round(history.evaluation),
    }


def version_object(history: VersionHistory) -> dict[str, Any]:
    """A policy version as one object."""
    return {
        **version_fields(history.version),
        "outcomes": [told(outcome) for outcome in history.outcomes],
        "num_sampled_groups": history.num_sampled,
    }


def task_object(history: TaskHistory, task: Task | None) -> dict[str, Any]:
    """A task as one object."""
    return {"task_id": history.task_id, "task": plain(task), "groups": [plain(group) for group in history.groups]}


def version_fields(version: KnownVersion) -> dict[str, Any]:
    """A policy version, and what became of it."""
    return {**(told(version.delivery) or {}), "survives": version.survives, "has_weights": version.has_weights}


def render_step(history: StepHistory) -> RenderableType:
    """A step for people."""
    parts: list[RenderableType] = [fact("step", str(history.step), "bold")]
    if not history.has_ended:
        parts.append(fact("state", "not made yet, or superseded"))
    for version in history.versions:
        parts += _version(version)
    if history.evaluation is not None:
        parts.append(fact("evaluation", _measured(history.evaluation)))
    return Lines(*parts, Text(), _outcomes(history.outcomes))


def render_version(history: VersionHistory) -> RenderableType:
    """A policy version for people."""
    lineage = ", ".join(f"{printable(entry.run_id)} to step {entry.last_step}" for entry in history.lineage)
    return Lines(
        *_version(history.version),
        fact("continues", lineage or "no other run"),
        fact("sampled", f"tokens of up to {history.num_sampled} groups that have ended"),
        Text(),
        _outcomes(history.outcomes),
    )


def render_task(history: TaskHistory, task: Task | None) -> RenderableType:
    """A task for people."""
    parts: list[RenderableType] = [fact("task", printable(history.task_id), "bold")]
    if task is not None:
        parts += [
            fact("files", f"{len(task.tree)}, and {len(task.tests)} protected"),
            fact("tests", f"{len(task.fail_to_pass)} must come to pass, {len(task.pass_to_pass)} must still pass"),
            Text(),
            Text(printable(task.statement.strip())),
            Text(),
        ]
    rows = table("group", "requested", ">step", "outcome", ">passed", ">clean", ">valid", ">asked")
    for group in history.groups:
        end = group.outcome
        figures = [str(n) for n in (end.num_passed, end.num_clean, end.num_valid, end.num_requested)] if end else [""] * 4
        state = ended_as(end) if end else "in flight"
        rows.add_row(printable(group.group_id), moment(group.requested_at), str(group.step), state, *figures)
    return Lines(*parts, rows)


def _version(version: KnownVersion) -> list[RenderableType]:
    record = version.record
    faults = ["superseded"] * (not version.survives) + ["its weights were removed"] * (not version.has_weights)
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items())
    return [
        fact("version", f"{record.version} of run {printable(record.run_id)}{''.join(f', {text}' for text in faults)}", "bold"),
        fact("published", f"{moment(version.delivery.at)} at {version.delivery.ref}, step {record.step}"),
        fact("weights", f"{one_line(record.location)} ({record.checksum[:12]})"),
        fact("metrics", printable(metrics) or "none"),
    ]


def _outcomes(outcomes: Sequence[Delivery[Outcome]]) -> RenderableType:
    rows = table("group", "task", "outcome", ">staleness", ">passed", ">clean", ">valid", ">asked", "at")
    for delivery in outcomes:
        end = delivery.record
        staleness = str(end.staleness) if end.staleness >= 0 else ""
        figures = map(str, (end.num_passed, end.num_clean, end.num_valid, end.num_requested))
        rows.add_row(printable(end.group_id), printable(end.task_id), ended_as(end), staleness, *figures, str(delivery.ref))
    return rows


def _measured(evaluation: Round) -> str:
    rate, quality = evaluation.pass_rate, evaluation.quality
    passed = f"pass rate {rate:.3f} +-{evaluation.pass_error:.3f}" if rate is not None else "no valid attempt"
    return f"{evaluation.num_groups} groups, {passed}" + (f", clean {quality:.3f} of passing" if quality is not None else "")


def _round(evaluation: Round | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    rates = {"pass_rate": evaluation.pass_rate, "pass_error": evaluation.pass_error, "quality": evaluation.quality}
    return {**plain(evaluation), **rates}
