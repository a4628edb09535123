"""A run as `gagar show run` tells it: how it was started, and what its topics say of it.

In: the resources of a run. Out: `RunHistory`. Everything but transcripts and tokens is read; kept are sums, as in
`gagar.report.progress`.
"""

from contextlib import aclosing
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.console import Group as Lines
from rich.text import Text

from gagar.errors import ConfigError
from gagar.history.group_view import fact, table
from gagar.history.plain import moment, plain, printable
from gagar.records import RunSettings
from gagar.report.progress import Progress, Snapshot, Step
from gagar.report.summary import round_text
from gagar.stream.readers.scans import scan_transport
from topology.resources import Resources
from topology.settings import read_settings
from topology.topics import TOPICS, TRAJECTORIES, TRAJECTORY_TOKENS

TOLD_EVERY = 10_000
"""Records between two signs of life."""
TOLD_METRICS = ("loss", "grad_norm", "clip_fraction")


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    name: str
    settings: RunSettings | None
    """What it was started with last; none if nobody has recorded that."""
    snapshot: Snapshot


async def read_run(resources: Resources) -> RunHistory:
    """Raises UnavailableError, ConfigError for a run without records."""
    settings, progress = await read_settings(resources), Progress()
    read = [topic for topic in TOPICS if topic not in (TRAJECTORIES, TRAJECTORY_TOKENS)]
    with Console(stderr=True).status("reading the log") as status:
        async with resources.opened() as transport, aclosing(scan_transport(transport, read)) as deliveries:
            async for delivery in deliveries:
                progress.apply(delivery)
                if progress.num_records % TOLD_EVERY == 0:
                    status.update(f"reading the log: {progress.num_records} records")
    if not progress.num_records and settings is None:
        raise ConfigError(f"run {resources.run.run.name}: expected records, got none; name another one: `gagar show run NAME`")
    return RunHistory(name=resources.run.run.name, settings=settings, snapshot=progress.snapshot())


def run_object(history: RunHistory) -> dict[str, Any]:
    """A run as one object."""
    snapshot = history.snapshot
    counts = {"num_dropped": snapshot.num_dropped, "num_in_flight": snapshot.num_in_flight}
    return {"run": history.name, "started": plain(history.settings), **plain(snapshot), **counts}


def render_run(history: RunHistory) -> RenderableType:
    """A run for people."""
    snapshot, settings = history.snapshot, history.settings
    dropped = ", ".join(f"{count} {reason}" for reason, count in snapshot.dropped.items()) or "none"
    parts: list[RenderableType] = [fact("run", printable(history.name), "bold")]
    if settings is not None:
        parts.append(fact("started", f"{moment(settings.at)} on {printable(settings.host)} in {printable(settings.directory)}"))
    end = ", the planned end" if snapshot.is_last else ""
    restarts = f", after {snapshot.num_restarts} restarts of the learner" if snapshot.num_restarts else ""
    parts += [
        fact("records", f"{moment(snapshot.first_at)} to {moment(snapshot.last_at)}"),
        fact("step", f"{snapshot.step}{end}; policy version {snapshot.version}{restarts}"),
        fact("requested", f"{snapshot.num_requested} groups"),
        fact("trained", f"{snapshot.num_trained} groups, {snapshot.num_superseded} outcomes superseded"),
        fact("evaluated", f"{snapshot.num_evaluated} groups"),
        fact("dropped", dropped),
        fact("in flight", f"{snapshot.num_in_flight} groups"),
        fact("dead letters", str(snapshot.num_dead_letters), "red" if snapshot.num_dead_letters else ""),
        *(fact("evaluation", f"step {found.step}: {round_text(found)}") for found in snapshot.rounds),
        Text(),
        _steps(snapshot.steps),
    ]
    return Lines(*parts)


def _steps(steps: list[Step]) -> RenderableType:
    rows = table(">step", "at", ">groups", ">dropped", ">staleness", *(f">{name}" for name in TOLD_METRICS))
    for step in steps:
        staleness = "" if step.staleness is None else f"{step.staleness:.2f}"
        metrics = [f"{step.metrics[name]:.4g}" if name in step.metrics else "" for name in TOLD_METRICS]
        rows.add_row(str(step.step), moment(step.at), str(step.num_groups), str(step.dropped.total()), staleness, *metrics)
    return rows
