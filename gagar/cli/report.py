"""`gagar report`: the report of a run, finished or going on, from its topics."""

import asyncio
from typing import TYPE_CHECKING

import click
import msgspec

from gagar.cli.run_file import run_options
from gagar.config import Run

if TYPE_CHECKING:
    from gagar.report.summary import Summary

MAX_FINDINGS = 10


@click.command()
@run_options
@click.option("--json", "is_json", is_flag=True, help="Print the summary as one JSON object.")
def report(run: Run, is_json: bool) -> None:
    """Write report.html and the curves of a run from its topics.

    The run may have ended or go on; name another one than the run file's with --set run.name=NAME.
    """
    summary = asyncio.run(make_report(run))
    click.echo(msgspec.json.encode(summary).decode() if is_json else summary.report)


async def make_report(run: Run) -> "Summary":
    """Reads, audits and writes; the summary, with the path of the page. Raises UnavailableError, or ConfigError if the cluster
    has no topics of this run."""
    from gagar.broker.address import bootstrap_servers
    from gagar.cli.audit import run_audit
    from gagar.cli.history import read_history, scan_of, write_run_report
    from gagar.errors import ConfigError
    from gagar.report.summary import summarize

    history = await read_history(scan_of(run, bootstrap_servers(run)))
    snapshot = history.snapshot
    if not snapshot.records:
        raise ConfigError(f"run.name: expected a run with records, got {run.run.name!r}; name one with --set run.name=NAME")
    audit = await run_audit(run, is_in_flight_allowed=True)
    summary = summarize(snapshot, run.run.name, audit_text(audit.findings), snapshot.last_at - snapshot.first_at)
    page = await asyncio.to_thread(write_run_report, run, history, summary)
    return msgspec.structs.replace(summary, report=str(page))


def audit_text(findings: list[str]) -> str:
    """The audit's word in a summary: `clean`, or what is wrong; `gagar audit` tells all of it."""
    num_more = len(findings) - MAX_FINDINGS
    return "; ".join([*findings[:MAX_FINDINGS], *([f"and {num_more} more"] if num_more > 0 else [])]) or "clean"
