"""`gagar topics plan|apply|check|graph`: the cluster's topics against the topology, and the topology as a drawing."""

import time
from collections.abc import Sequence

import click

from gagar.broker.address import cluster_now
from gagar.cli.run_file import run_options
from gagar.cli.saved_run import save_run
from gagar.cli.up.stage_processes import SINGLE
from gagar.config import Run
from gagar.errors import ConfigError
from gagar.stream.kafka.admin import Admin
from gagar.stream.kafka.initial_offsets import commit_initial_offsets
from gagar.stream.kafka.preflight import check_coordinators
from gagar.stream.kafka.topic_plan import TopicChange, max_kept_bytes, wanted_topics
from gagar.stream.together import run_apart
from topology.graph import check_topology, readme_block
from topology.resources import Resources
from topology.settings import check_own, differences, read_settings, refusal, settings_of, write_settings
from topology.stages import STAGES
from topology.topics import ALL_TOPICS, DEAD_LETTERS, TRAJECTORY_TOKENS

MEMBER_WAIT_S = 10.0
"""A stage that has just died is a member of its group until its session ends."""
MEMBER_POLL_S = 1.0


@click.command()
@run_options
def plan(run: Run) -> None:
    """Print what apply would do, and what the partitions allow."""
    with Admin(cluster_now(run)) as admin:
        changes, num_brokers = admin.plan(run, ALL_TOPICS), admin.num_brokers()
    for change in changes:
        click.echo(f"{change.kind:<7} {change.what}")
    click.echo(f"{len(changes)} changes" if changes else "nothing to do")
    for line in allowances(run, num_brokers):
        click.echo(line)


@click.command()
@run_options
def apply(run: Run) -> None:
    """Create the topics that are missing and mend settings; nothing is ever deleted."""
    for change in apply_topology(run):
        click.echo(f"{change.kind:<7} {change.what}")
    if fault := save_run(run):
        click.echo(f"run {run.run.name}: {fault}", err=True)
    click.echo("topics are as the topology says")


@click.command()
@run_options
@click.pass_context
def check(context: click.Context, run: Run) -> None:
    """Print each drift; exit code 1 if there is any."""
    changes = _differences(run)
    for change in changes:
        click.echo(change.what)
    context.exit(1 if changes else 0)


@click.command()
def graph() -> None:
    """Print the pipeline as a mermaid drawing, as the README holds it."""
    check_topology()
    click.echo(readme_block())


def allowances(run: Run, num_brokers: int) -> list[str]:
    """What the numbers of `[kafka]` allow, and what they risk."""
    num, factor = run.kafka.num_partitions, run.kafka.replication_factor
    many = ", ".join(stage.name for stage in STAGES if stage.kind not in SINGLE)
    single = ", ".join(stage.name for stage in STAGES if stage.kind in SINGLE)
    kept = max_kept_bytes(wanted_topics(run, [TRAJECTORY_TOKENS])[run.topic(TRAJECTORY_TOKENS.name)])
    lines = [
        f"kafka.num_partitions={num}: at most {num} processes each of {many}; 1 of {single}; fixed once the run has topics",
        f"kafka.token_retention_bytes={run.kafka.token_retention_bytes}: at most {kept / (1 << 30):.1f} GiB of tokens on disk, "
        f"times kafka.replication_factor={factor}",
    ]
    if factor == 1 and num_brokers > 1:
        lines.append(
            f"kafka.replication_factor=1 on {num_brokers} brokers: one that is lost takes its partitions along; "
            f"set {min(3, num_brokers)} before the topics are created"
        )
    return lines


def apply_topology(run: Run) -> list[TopicChange]:
    """Brings the cluster to the topology, tries whether stages can work on it, and records the settings of the run; what was
    done with the topics. How the run was started before is told on stderr. Raises UnavailableError or ConfigError."""
    check_topology()
    resources = Resources(run)
    with Admin(cluster_now(run)) as admin:
        recorded = run_apart(read_settings(resources))
        if recorded:
            check_own(recorded, run)
        changed = differences(recorded.settings, settings_of(run)) if recorded else []
        text = (
            refusal(recorded, run, "end all its stages first, which are at work, or take another run.name") if recorded else ""
        )
        if text and goes_on(admin, [run.topic(stage.name) for stage in STAGES]):
            raise ConfigError(text)
        changes = admin.apply(run, ALL_TOPICS)
        check_coordinators(admin, run.run.name, DEAD_LETTERS)
        commit_initial_offsets(admin, run, STAGES)
    if changed or not recorded:
        run_apart(write_settings(resources))
    for line in changed:
        click.echo(f"run {run.run.name}: {line}", err=True)
    return changes


def goes_on(admin: Admin, groups: Sequence[str], wait_s: float = MEMBER_WAIT_S) -> bool:
    """Whether one of these consumer groups has a member, and still has in `wait_s`."""
    deadline = time.monotonic() + wait_s
    while admin.has_members(groups):
        if time.monotonic() >= deadline:
            return True
        time.sleep(MEMBER_POLL_S)
    return False


def _differences(run: Run) -> list[TopicChange]:
    with Admin(cluster_now(run)) as admin:
        return admin.plan(run, ALL_TOPICS)
