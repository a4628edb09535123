"""`gagar audit`: proves from its topics what a run promises: see `gagar.audit.findings.Law`.

In: the run file, and from when on. Out: counts and findings, as text or JSON; exit 0 only when every law holds, 1 when one does
not. Memory is bounded, however many groups there are.
"""

import asyncio
import re
import sys
import time
from datetime import UTC, datetime

import click
import msgspec

from gagar.audit.findings import Finding
from gagar.audit.fold import Audit, AuditTerms
from gagar.audit.references import Claim, Ranges, broken_claims, broken_partitions
from gagar.audit.result import AuditResult
from gagar.audit.view import as_lines, as_object
from gagar.broker.address import cluster_now
from gagar.cli.saved_run import name_another, reading_options
from gagar.config import KafkaTable, Run
from gagar.errors import ConfigError
from gagar.stream.kafka.admin import Admin
from gagar.stream.readers.references import LogReferences
from gagar.stream.readers.scans import Spans, scan_transport
from gagar.stream.transport import Partition, Transport
from topology import topics
from topology.composition import stage_config
from topology.planned_end import wait_for_end
from topology.stages import GATHERER, STAGES, upstream_first

CLOCK_SKEW_S = 60.0
"""The most by which the clocks of two brokers, which date records, may differ."""
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
AGO = re.compile(r"([0-9]{1,9})([smhd])")


async def run_audit(run: Run, *, since: float = 0.0, is_in_flight_allowed: bool = False) -> AuditResult:
    """Audits the topics of a run as they are now, or the groups requested since a time (Unix seconds); raises UnavailableError
    if the cluster does not answer, ConfigError if it has no topics of the run."""
    from gagar.stream.kafka.client import KafkaTransport

    kafka = cluster_now(run)
    ranges = await asyncio.to_thread(_ranges, kafka, run)
    spans = await asyncio.to_thread(_spans, kafka, run, ranges, since)
    audit = Audit(await asyncio.to_thread(_terms, kafka, run, since), ranges)
    transport = KafkaTransport(kafka, run.run.name)
    await transport.open()
    try:
        for topic in upstream_first():
            if topic != topics.TRAJECTORY_TOKENS:
                async for delivery in scan_transport(transport, (topic,), spans=spans):
                    audit.apply(delivery)
        broken = await _follow(audit, transport)
    finally:
        await transport.close()
    # Retention may have taken in the meantime what was to be read: that is not held against anyone.
    later = await asyncio.to_thread(_ranges, kafka, run)
    audit.retire(later)
    for finding in broken_partitions(topics.TOPICS, run.kafka.num_partitions, later):
        audit.hold(finding)
    for claim, finding in broken:
        if claim.ref.offset >= later[claim.ref.topic, claim.ref.partition][0]:
            audit.hold(finding)
    return audit.result(is_in_flight_allowed=is_in_flight_allowed)


def _terms(kafka: KafkaTable, run: Run, since: float) -> AuditTerms:
    with Admin(kafka) as admin:
        is_at_work = admin.has_members([run.topic(stage.name) for stage in STAGES])
    return AuditTerms(
        max_staleness=run.training.max_staleness,
        grace_s=stage_config(GATHERER, run).grace_s,
        since=since,
        now=time.time() if is_at_work else 0.0,
    )


def _ranges(kafka: KafkaTable, run: Run) -> Ranges:
    """First and end offset of every partition, by the topic's name without the run's prefix: a consistent cut, since the ends
    are asked for one topic after the other, downstream first.

    Where a record may be visible before another one of its transaction is (markers take a moment), the end is the one after
    everything written: references are checked against that, and a policy version is waited for.
    """
    eager = (topics.TRAJECTORY_TOKENS, topics.POLICY_VERSIONS)
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    with Admin(kafka) as admin:
        found = admin.describe([run.topic(topic.name) for topic in topics.TOPICS])
        if len(found) < len(topics.TOPICS):
            got = f"{run.run.name!r} without; {name_another(run)}"
            raise ConfigError(f"run.name: expected a run with topics, got {got}")
        for topic in reversed(upstream_first()):
            name = run.topic(topic.name)
            asked = {name: found[name].num_partitions}
            ends, begins = admin.end_offsets(asked, is_committed=topic not in eager), admin.start_offsets(asked)
            ranges |= {(topic.name, number): (begins[name, number], end) for (_, number), end in ends.items()}
    return ranges


def _spans(kafka: KafkaTable, run: Run, ranges: Ranges, since: float) -> Spans:
    """What to read of each partition: all of it, or what may belong to groups requested since then, and all policy versions."""
    spans = {Partition(*at): span for at, span in ranges.items()}
    if not since:
        return spans
    sizes = {topic.name: sum(at.topic == topic.name for at in spans) for topic in topics.TOPICS}
    with Admin(kafka) as admin:
        names = {run.topic(name): size for name, size in sizes.items() if name != topics.POLICY_VERSIONS.name}
        found = admin.offsets_since(names, since - CLOCK_SKEW_S)
    prefix = run.topic("")
    for (name, number), offset in found.items():
        at = Partition(name.removeprefix(prefix), number)
        begin, end = spans[at]
        spans[at] = (min(max(begin, offset), end) if offset >= 0 else end, end)
    return spans


async def _follow(audit: Audit, transport: Transport) -> list[tuple[Claim, Finding]]:
    """Reads what a sample of the references points to; the answer is those that do not hold."""
    followed = (topics.TRAJECTORIES, topics.TRAJECTORY_TOKENS)
    references = LogReferences(transport, followed)
    try:
        records = {topic.name: topic.record for topic in followed}
        return [pair async for pair in broken_claims(audit.claims(), references, records)]
    finally:
        await references.close()


def since_time(context: click.Context | None, option: click.Parameter | None, text: str | None) -> float:
    """A click callback: `30m`, `2h`, `1d` (so long ago) or an ISO time, of UTC unless it names another zone, as Unix seconds; 0
    if nothing was said. Raises click.BadParameter for another form and for a time that is no past."""
    if text is None:
        return 0.0
    now = time.time()
    match = AGO.fullmatch(text)
    at = now - int(match[1]) * UNITS_S[match[2]] if match else _at(text)
    if at is None or not 0 < at <= now:
        raise click.BadParameter(f"expected a time in the past as 90s, 30m, 2h, 1d or 2026-01-31T12:00, got {text!r}")
    return at


def _at(text: str) -> float | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


@click.command()
@reading_options
@click.option(
    "--since", callback=since_time, metavar="WHEN", help="Only groups requested since then: 30m, 2h, 1d, or an ISO time (UTC)."
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.option("--allow-in-flight", is_flag=True, help="After the planned end, too, groups may be in flight.")
@click.option("--wait", is_flag=True, help="Wait for the planned end first.")
def audit(run: Run, since: float, is_json: bool, allow_in_flight: bool, wait: bool) -> None:
    """Prove from the topics that every group ended exactly once.

    Checks that each requested group has one outcome in the surviving lineage and none is overdue, that no group is doubled on
    its way, that references resolve, that advantages keep their sums and ratios, that no step trained on what was too stale,
    and that policy versions and lineages are whole. Exits with 0 only when all of it holds. Where attempts came to nothing, it
    tells which share of the short and of the long ones. The run is the one that started
    last, unless --run or --set run.name=NAME names another.
    """
    if wait:
        asyncio.run(wait_for_end(run))
    result = asyncio.run(run_audit(run, since=since, is_in_flight_allowed=allow_in_flight))
    if is_json:
        click.echo(msgspec.json.encode(as_object(result)).decode())
    else:
        for line in as_lines(result):
            click.echo(line)
    if not result.is_clean:
        sys.exit(1)
