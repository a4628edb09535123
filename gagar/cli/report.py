"""`gagar report`: the report of a run, finished or going on, from its topics.

In: a `Run` and the address of its broker. Out: `History`, and the report's path. Memory is bounded as that of
`gagar.report.progress` and `gagar.report.examples` is.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from gagar.broker.address import cluster_now
from gagar.cli.audit import run_audit
from gagar.cli.saved_run import name_another, reading_options
from gagar.config import SHARED, KafkaTable, Run
from gagar.errors import ConfigError
from gagar.records import LogRef, Trajectory, Verdict
from gagar.report.examples import Examples, ShownAttempt
from gagar.report.page import ReportData, write_report
from gagar.report.progress import Progress, Snapshot
from gagar.report.summary import Summary, summarize
from gagar.stream.handlers import Delivery
from gagar.stream.spec import Topic
from topology import topics

MAX_FINDINGS = 10
"""Findings that a summary tells in words."""

Scan = Callable[[Sequence[Topic]], AsyncGenerator[Delivery[Any], None]]
"""Deliveries of topics from their start to their present end."""


@click.command()
@reading_options
@click.option("--json", "is_json", is_flag=True, help="Print the summary as one JSON object.")
def report(run: Run, is_json: bool) -> None:
    """Write report.html and the curves of a run from its topics.

    The run may have ended or go on. It is the one that started last, unless --run or --set run.name=NAME names another.
    """
    summary = asyncio.run(make_report(run))
    click.echo(msgspec.json.encode(summary).decode() if is_json else summary.report)


async def make_report(run: Run) -> Summary:
    """Audits, reads and writes; the summary, with the path of the page. Raises UnavailableError, or ConfigError if the cluster
    has no topics of this run."""
    audit = await run_audit(run, is_in_flight_allowed=True)
    history = await read_history(scan_of(run, cluster_now(run)))
    snapshot = history.snapshot
    if not snapshot.records:
        raise ConfigError(f"run.name: expected a run with records, got {run.run.name!r}; {name_another(run)}")
    summary = summarize(snapshot, run.run.name, audit_text(audit.findings), snapshot.last_at - snapshot.first_at)
    page = await asyncio.to_thread(write_run_report, run, history, summary)
    return msgspec.structs.replace(summary, report=str(page))


def audit_text(findings: list[str]) -> str:
    """The audit's word in a summary: `clean`, or what is wrong; `gagar audit` tells all of it."""
    num_more = len(findings) - MAX_FINDINGS
    return "; ".join([*findings[:MAX_FINDINGS], *([f"and {num_more} more"] if num_more > 0 else [])]) or "clean"


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What the topics tell of a run."""

    snapshot: Snapshot
    examples: list[ShownAttempt]


async def read_history(scan: Scan) -> History:
    """Reads everything but tokens once, then the transcripts of the chosen examples."""
    progress, examples = Progress(), Examples()
    async with aclosing(scan(topics_read(with_transcripts=False))) as deliveries:
        async for delivery in deliveries:
            progress.apply(delivery)
            if isinstance(delivery.record, Verdict):
                examples.apply(delivery.record)
    wanted = examples.wanted()
    found: dict[LogRef, Trajectory] = {}
    if wanted:
        async with aclosing(scan([topics.TRAJECTORIES])) as deliveries:
            async for delivery in deliveries:
                if delivery.ref in wanted:
                    found[delivery.ref] = delivery.record
                if len(found) == len(wanted):
                    break
    return History(snapshot=progress.snapshot(), examples=examples.build(found))


def topics_read(*, with_transcripts: bool) -> list[Topic]:
    """The topics that progress is made of."""
    left_out = {topics.TRAJECTORY_TOKENS.name} | (set() if with_transcripts else {topics.TRAJECTORIES.name})
    return [topic for topic in topics.TOPICS if topic.name not in left_out]


def scan_of(run: Run, kafka: KafkaTable, *, follow: bool = False) -> Scan:
    """Reads the topics of `run`, to their present end or, with `follow`, on and on."""
    from gagar.stream.kafka.client import scan

    return lambda read: cast(AsyncGenerator[Delivery[Any], None], scan(kafka, run.run.name, read, follow=follow))


def write_run_report(run: Run, history: History, summary: Summary) -> Path:
    """Writes the report of a run into its directory; returns the page's path."""
    tables = {name: msgspec.to_builtins(getattr(run, name)) for name in SHARED} | run.tables
    made_at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    data = ReportData(summary=summary, snapshot=history.snapshot, examples=history.examples, tables=tables, made_at=made_at)
    return write_report(run.directory, data)
