"""`gagar topics`: the cluster's topics against the topology, and the topology as a drawing."""

import click

from gagar.broker.address import cluster_now
from gagar.cli.run_file import run_options
from gagar.cli.saved_run import save_run
from gagar.cli.stage_processes import SINGLE
from gagar.config import Run
from gagar.stream.kafka.admin import Admin
from gagar.stream.kafka.initial_offsets import commit_initial_offsets
from gagar.stream.kafka.preflight import check_coordinators
from gagar.stream.kafka.topic_plan import TopicChange, max_kept_bytes, wanted_topics
from topology.graph import check_topology, readme_block
from topology.stages import STAGES
from topology.topics import DEAD_LETTERS, TOPICS, TRAJECTORY_TOKENS


@click.group()
def topics() -> None:
    """Plan, apply or check the topics; draw the pipeline."""


@topics.command()
@run_options
def plan(run: Run) -> None:
    """Print what apply would do, and what the partitions allow."""
    with Admin(cluster_now(run)) as admin:
        changes, num_brokers = admin.plan(run, TOPICS), admin.num_brokers()
    for change in changes:
        click.echo(f"{change.kind:<7} {change.what}")
    click.echo(f"{len(changes)} changes" if changes else "nothing to do")
    for line in allowances(run, num_brokers):
        click.echo(line)


@topics.command()
@run_options
def apply(run: Run) -> None:
    """Create the topics that are missing and mend settings; nothing is ever deleted."""
    for change in apply_topology(run):
        click.echo(f"{change.kind:<7} {change.what}")
    for told in save_run(run):
        click.echo(f"run {run.run.name}: {told}", err=True)
    click.echo("topics are as the topology says")


@topics.command()
@run_options
@click.pass_context
def check(context: click.Context, run: Run) -> None:
    """Print each drift; exit code 1 if there is any."""
    changes = _differences(run)
    for change in changes:
        click.echo(change.what)
    context.exit(1 if changes else 0)


@topics.command()
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
    """Brings the cluster to the topology, and tries whether stages can work on it; what was done. Raises UnavailableError or
    ConfigError."""
    check_topology()
    with Admin(cluster_now(run)) as admin:
        changes = admin.apply(run, TOPICS)
        check_coordinators(admin, run.run.name, DEAD_LETTERS)
        commit_initial_offsets(admin, run, STAGES)
    return changes


def _differences(run: Run) -> list[TopicChange]:
    with Admin(cluster_now(run)) as admin:
        return admin.plan(run, TOPICS)
