"""A group's history as a dict for JSON, and as tables for people.

In: `GroupHistory`. Out: what `gagar show group` and `gagar show trajectory` print. Texts of agents are made printable.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gagar.history.group import AttemptHistory, GroupHistory, ended_as
from gagar.history.plain import moment, one_line, plain, printable, told
from gagar.records import GradedGroup, Group, GroupAdvantages, RolloutRequest
from gagar.stream.handlers import Delivery

TRANSCRIPT = ("messages",)
SHARED = ("group_id", "task_id")
"""Said once for the group."""


def as_object(history: GroupHistory) -> dict[str, Any]:
    """The group as one object; transcripts are left out."""
    request = plain(history.newest(RolloutRequest)) or {}
    return {
        "group_id": history.group_id,
        **{name: request.get(name) for name in ("task_id", "purpose", "group_size")},
        "requested_at_step": request.get("step"),
        "state": history.reached,
        "has_ended": bool(history.outcomes),
        "attempts": [attempt_object(attempt, (*TRANSCRIPT, *SHARED)) for attempt in history.attempts],
        "groups": _all_told(history.of(Group)),
        "gradings": _all_told(history.of(GradedGroup)),
        "advantages": _all_told(history.of(GroupAdvantages)),
        "outcomes": _all_told(history.outcomes),
        "superseded": _all_told(history.superseded),
        "versions": _all_told(history.versions),
        "dead_letters": _all_told(history.letters),
        "unreadable": [{"ref": str(ref), "error": error} for ref, error in history.unreadable],
        "retries": [str(ref) for ref in history.retries],
        "missing": [str(ref) for ref in history.missing],
    }


def _all_told(deliveries: Sequence[Delivery[Any]]) -> list[dict[str, Any] | None]:
    """Without what is told of each attempt, and without the bytes of dead letters."""
    return [told(delivery, ("members", "group", "grades", "value", *SHARED)) for delivery in deliveries]


def attempt_object(attempt: AttemptHistory, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """One attempt, with its transcript unless that is left out."""
    return {
        "sample_index": attempt.sample_index,
        "request": told(attempt.request, leave_out),
        "trajectory": told(attempt.trajectory, leave_out),
        "verdict": told(attempt.verdict, leave_out),
        "grade": plain(attempt.grade),
        "advantage": plain(attempt.advantage),
    }


def render_group(history: GroupHistory) -> RenderableType:
    """The group from its request to its end."""
    attempts = history.attempts
    parts: list[RenderableType] = [*_head(history), _attempts(attempts)]
    if history.of(GradedGroup):
        parts += [Text(), *_grading(history)]
    if any(attempt.advantage for attempt in attempts):
        parts += [Text(), *_advantages(history)]
    return Lines(*parts, Text(), *_ends(history), *_faults(history), Text(), _references(history))


def render_attempt(history: GroupHistory, attempt: AttemptHistory) -> RenderableType:
    """One attempt: its verdict, its patch and its transcript."""
    lines: list[RenderableType] = [*_head(history), _attempts([attempt]), Text()]
    if attempt.trajectory is not None:
        trajectory = attempt.trajectory.record
        for number, message in enumerate(trajectory.messages):
            lines += [Text(f"--- message {number}: {printable(message.role)}", style="bold"), Text(printable(message.content))]
        lines += [Text("--- patch", style="bold"), Text(printable(trajectory.patch) or "none")]
    return Lines(*lines, *_faults(history))


def fact(label: str, text: str, style: str = "") -> Text:
    """A line with its label."""
    return Text.assemble((f"{label:<11} ", "dim"), (text, style))


def table(*headings: str) -> Table:
    """A table without lines; the columns of numbers stand right."""
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for heading in headings:
        found.add_column(heading.lstrip(">"), justify="right" if heading.startswith(">") else "left", overflow="fold")
    return found


def _head(history: GroupHistory) -> Iterator[Text]:
    requests = history.of(RolloutRequest)
    yield fact("group", printable(history.group_id), "bold")
    if requests:
        request = requests[0].record
        yield fact("task", f"{printable(request.task_id)} ({request.purpose})")
        yield fact("requested", f"{request.group_size} attempts at step {request.step}, {moment(requests[0].at)}")
        yield fact("deadline", f"{request.deadline_s:g} s; {request.agent_timeout_s:g} s of the agent's own work")
    yield fact("state", history.reached, "bold")
    yield Text()


def _attempts(attempts: Sequence[AttemptHistory]) -> Table:
    rows = table(">sample", "ended", ">turns", ">tokens", "policy", ">s", "verdict", "tests", "dead/outside", "reason")
    for attempt in attempts:
        rows.add_row(str(attempt.sample_index), *_made(attempt), *_judged(attempt))
    return rows


def _made(attempt: AttemptHistory) -> list[str]:
    if attempt.trajectory is not None:
        facts, seconds = attempt.trajectory.record.attempt, f"{attempt.trajectory.record.duration_s:.1f}"
    elif attempt.judged is not None:
        facts, seconds = attempt.judged.attempt, ""
    else:
        return ["not yet", "", "", "", ""]
    versions = sorted({facts.policy_version_min, facts.policy_version_max})
    return [facts.status, str(facts.num_turns), str(facts.num_sampled_tokens), " to ".join(map(str, versions)), seconds]


def _judged(attempt: AttemptHistory) -> list[str]:
    verdict = attempt.judged
    failure = attempt.trajectory.record.failure if attempt.trajectory is not None else ""
    if verdict is None:
        return ["none yet", "", "", one_line(failure)]
    measures = verdict.measures
    return [
        verdict.status,
        f"{verdict.num_tests_passed}/{verdict.num_tests_expected}",
        f"{measures.num_dead_statements}/{measures.num_files_out_of_scope}",
        one_line(verdict.reason or failure),
    ]


def _grading(history: GroupHistory) -> Iterator[RenderableType]:
    for graded in history.of(GradedGroup):
        kept = f"; falls back to GRPO: {one_line(graded.record.fallback)}" if graded.record.fallback else ""
        yield fact("graded by", f"{printable(graded.record.grader)}{kept}")
    rows = table(">sample", ">tier", ">place", "evidence")
    for attempt in sorted((a for a in history.attempts if a.grade), key=lambda a: a.grade.position if a.grade else 0):
        if attempt.grade is not None:
            evidence = "; ".join(one_line(text) for text in attempt.grade.evidence)
            rows.add_row(str(attempt.sample_index), str(attempt.grade.tier), str(attempt.grade.position), evidence)
    if rows.row_count:
        yield rows


def _advantages(history: GroupHistory) -> Iterator[RenderableType]:
    for found in history.of(GroupAdvantages):
        capped = f", capped: {found.record.shift:+.4f} taken from each" if found.record.was_capped else ""
        yield fact("advantages", f"rescaled by {found.record.rescale:.4f}{capped}")
    rows = table(">sample", ">reward", ">GRPO", ">weight", ">advantage")
    for attempt in history.attempts:
        member = attempt.advantage
        if member is not None:
            figures = (f"{member.grpo_advantage:+.4f}", f"{member.weight:.3f}", f"{member.advantage:+.4f}")
            rows.add_row(str(attempt.sample_index), f"{member.reward:g}", *figures)
    yield rows


def _ends(history: GroupHistory) -> Iterator[Text]:
    for delivery in history.outcomes:
        outcome = delivery.record
        staleness = f", staleness {outcome.staleness}" if outcome.staleness >= 0 else ""
        by = f" by learner run {printable(outcome.run_id)}" if outcome.run_id else ""
        yield fact("outcome", f"{ended_as(outcome)}{by}{staleness}, {moment(delivery.at)}")
    for delivery in history.superseded:
        outcome = delivery.record
        yield fact("superseded", f"{ended_as(outcome)} by learner run {printable(outcome.run_id)}", "dim")
    for version in history.versions:
        record = version.record
        made = f"version {record.version} of run {printable(record.run_id)}, step {record.step}"
        yield fact("policy", f"{made}, {moment(version.at)}, {printable(record.location)}")


def _faults(history: GroupHistory) -> Iterator[Text]:
    for letter in history.letters:
        record = letter.record
        retried_as = history.retried_as(letter.ref)
        retried = f", retried as {retried_as}" if retried_as else ""
        yield fact("dead letter", f"{letter.ref} by {printable(record.stage)}: {one_line(record.error)}{retried}", "red")
    for ref, error in history.unreadable:
        yield fact("unreadable", f"{ref}: {one_line(error)}", "red")
    for ref in history.missing:
        yield fact("missing", f"{ref}: the log no longer holds it", "yellow")


def _references(history: GroupHistory) -> Table:
    """Where every record lies, and when the broker took it."""
    rows = table("record", ">sample", "at", "broker time")
    for delivery in sorted(history.deliveries, key=lambda delivery: delivery.at):
        sample = getattr(delivery.record, "sample_index", "")
        rows.add_row(str(delivery.record.__struct_config__.tag), str(sample), str(delivery.ref), moment(delivery.at))
    return rows
