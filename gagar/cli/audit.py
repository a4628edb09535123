"""`gagar audit`: proves the conservation law and the sum law of a run from its topics.

In: the run file. Out: counts and findings, as text or JSON; exit 0 only when every law holds, 1 when one does not.
"""

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gagar.cli.run_file import run_options
from gagar.config import Run
from gagar.errors import ConfigError

if TYPE_CHECKING:
    from gagar.audit import AuditReport, Ranges


async def run_audit(run: Run, *, is_in_flight_allowed: bool = False) -> "AuditReport":
    """Audits the topics of a run as they are now; raises UnavailableError if the cluster does not answer, ConfigError
    if it has no topics of the run.

    Downstream topics are read first: what they tell of must then be found upstream, also while the run goes on.
    """
    from gagar.audit import Audit
    from gagar.broker.address import bootstrap_servers
    from gagar.stream.kafka import scan
    from topology import topics

    order = (
        topics.OUTCOMES,
        topics.POLICY_VERSIONS,
        topics.ADVANTAGES,
        topics.GRADED_GROUPS,
        topics.GROUPS,
        topics.VERDICTS,
        topics.ROLLOUT_REQUESTS,
        topics.DEAD_LETTERS,
    )
    servers = bootstrap_servers(run)
    audit = Audit()
    for topic in order:
        async for delivery in scan(servers, run.run.name, (topic,), follow=False):
            audit.apply(delivery)
    ranges = await asyncio.to_thread(_ranges, servers, run)
    return audit.report(ranges, is_in_flight_allowed=is_in_flight_allowed)


def _ranges(servers: str, run: Run) -> "Ranges":
    """First and end offset of every partition that a record may refer to, by the topic's name without the run's prefix."""
    from gagar.stream.admin import Admin
    from topology import topics

    referred = (topics.ROLLOUT_REQUESTS, topics.TRAJECTORIES, topics.TRAJECTORY_TOKENS)
    with Admin(servers) as admin:
        names = admin.describe([run.topic(topic.name) for topic in referred])
        if len(names) < len(referred):
            raise ConfigError(
                f"run.name: expected a run with topics, got {run.run.name!r} without; name one with --set run.name=NAME"
            )
        partitions = {name: state.num_partitions for name, state in names.items()}
        starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions)
    prefix = run.topic("")
    return {(name.removeprefix(prefix), number): (starts[name, number], end) for (name, number), end in ends.items()}


def as_object(report: "AuditReport") -> dict[str, Any]:
    """The report as one JSON object."""
    rounds = {
        str(step): {**msgspec.structs.asdict(stats), "pass_rate": stats.pass_rate, "clean_share": stats.clean_share}
        for step, stats in report.rounds.items()
    }
    return {"is_clean": report.is_clean, **msgspec.structs.asdict(report), "rounds": rounds}


def as_lines(report: "AuditReport") -> Iterator[str]:
    """The report for people."""
    dropped = ", ".join(f"{reason} {count}" for reason, count in report.dropped.items())
    yield f"requested  {report.num_requested}"
    yield f"trained    {report.num_trained}"
    yield f"advantages {report.num_capped} groups capped, {report.num_fallback} kept as GRPO gives them"
    yield f"evaluated  {report.num_evaluated}"
    yield f"dropped    {report.num_dropped}{f' ({dropped})' if dropped else ''}"
    yield f"in flight  {report.num_in_flight}"
    if report.num_superseded:
        yield f"superseded {report.num_superseded} outcomes of steps that the learner went back on"
    if report.num_dead_letters:
        yield f"dead       {report.num_dead_letters} dead letters"
    for step, stats in report.rounds.items():
        shares = f"pass rate {stats.pass_rate:.3f}, clean {stats.clean_share:.3f}"
        yield f"round at step {step}: {stats.num_valid}/{stats.num_attempts} valid attempts, {shares}"
    yield from (f"finding: {text}" for text in report.findings)
    yield "clean" if report.is_clean else f"not clean: {len(report.findings)} findings"


@click.command()
@run_options
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.option("--allow-in-flight", is_flag=True, help="After the planned end, too, groups may be in flight.")
def audit(run: Run, is_json: bool, allow_in_flight: bool) -> None:
    """Prove from the topics that every group ended exactly once.

    Checks that each requested group has one outcome in the surviving lineage, that no group is doubled on its way, that
    references lie inside their logs, and that advantages keep their sums. Exits with 0 only when all of it holds.
    """
    report = asyncio.run(run_audit(run, is_in_flight_allowed=allow_in_flight))
    if is_json:
        click.echo(msgspec.json.encode(as_object(report)).decode())
    else:
        for line in as_lines(report):
            click.echo(line)
    if not report.is_clean:
        sys.exit(1)
