"""`gagar topics reset`: moves a stopped stage to other offsets, after a plan that says what this does to the run.

In: the run file, a stage, where to. Out: the plan, per partition; offsets with the metadata that lanes require. Refused while
the stage is at work, and where it can only do harm (`topology.resets`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

import click
import msgspec

from gagar.broker.address import cluster_now
from gagar.cli.audit import since_time
from gagar.cli.history.ids import REF
from gagar.cli.saved_run import name_another, reading_options
from gagar.cli.topics.planning import goes_on
from gagar.config import Run
from gagar.errors import ConfigError, UnavailableError
from gagar.stream.kafka.admin import Admin
from gagar.stream.readers.scans import scan_transport
from gagar.stream.resets import Move, Positions, commit_moves, moves
from gagar.stream.spec import Stage
from gagar.stream.transport import Partition
from topology.composition import find_stage
from topology.resets import check_letters, check_movable, check_moves, effects_of
from topology.resources import Resources
from topology.topics import DEAD_LETTERS

EXIT_DECLINED = 1
Ranges = Mapping[Partition, tuple[int, int]]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where to, as the command line says."""

    is_earliest: bool = False
    at: float = 0.0
    """Broker time, Unix seconds."""
    places: dict[Partition, int] = {}
    """Offset of each partition that is named; the others stay."""


def target_of(context: click.Context, option: click.Parameter, texts: Sequence[str]) -> Target:
    """A click callback: `earliest`, a time in the past, or places of the log as messages print them, alone or several."""
    matches = [REF.fullmatch(text) for text in texts]
    if all(matches):
        return Target(places={Partition(match[1], int(match[2])): int(match[3]) for match in matches if match})
    if len(texts) > 1:
        got = " and ".join(texts)
        raise click.BadParameter(f"expected earliest, or one time, or places as verdicts[3]@118, got {got}")
    if texts[0] == "earliest":
        return Target(is_earliest=True)
    try:
        return Target(at=since_time(None, None, texts[0]))
    except click.BadParameter:
        expected = "expected earliest, a time in the past as 30m, 2h, 1d or 2026-01-31T12:00, or a place as verdicts[3]@118"
        raise click.BadParameter(f"{expected}, got {texts[0]!r}") from None


def movable_stage(context: click.Context, option: click.Parameter, name: str) -> Stage:
    """A click callback: the stage of that name. Raises ConfigError if there is none, or if it cannot be moved."""
    stage = find_stage(name)
    check_movable(stage)
    return stage


@click.command("reset")
@click.argument("stage", metavar="STAGE", callback=movable_stage)
@click.option(
    "--to",
    "target",
    required=True,
    multiple=True,
    callback=target_of,
    metavar="WHERE",
    help="earliest; a time: 30m, 2h, 1d ago or an ISO time (UTC); or a place as verdicts[3]@118, repeatable.",
)
@click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object at the end.")
@reading_options
@click.pass_context
def reset(context: click.Context, run: Run, stage: Stage, target: Target, is_confirmed: bool, is_json: bool) -> None:
    """Move a stopped STAGE to other offsets; it does again what lies after them.

    Shows what moves in each partition and what that does to the run, and asks. A reset is not exactly-once: what is done again
    is written again. To look at what a stage makes of past records, use gagar replay, which changes nothing.
    """
    with Admin(cluster_now(run)) as admin:
        _check_stopped(admin, run, stage)
        ranges = _ranges(admin, run, stage)
        planned = moves(_positions(admin, run, stage), _targets(admin, run, target, ranges), ranges)
        check_moves(stage, planned)
        asyncio.run(_check_letters(run, stage, planned))
        for line in plan_lines(stage, planned):
            click.echo(line, err=is_json)
        is_done = bool(planned) and (is_confirmed or click.confirm("move it?", err=is_json))
        if is_done:
            _check_stopped(admin, run, stage)
            asyncio.run(_move(admin, run, stage, planned))
            click.echo(f"stage {stage.name}: moved in {len(planned)} partitions", err=is_json)
    if is_json:
        click.echo(msgspec.json.encode(as_object(stage, planned, is_done=is_done)).decode())
    context.exit(EXIT_DECLINED if planned and not is_done else 0)


def plan_lines(stage: Stage, planned: Sequence[Move]) -> list[str]:
    """The plan, for people."""
    if not planned:
        return [f"stage {stage.name}: nothing to move, it stands there"]
    lines = [f"{one.at}: {_stands(one)}, goes to {one.after.offset}{_counts(one)}" for one in planned]
    return [*lines, *(f"- {line}" for line in effects_of(stage, planned))]


def _stands(one: Move) -> str:
    return f"stands at {one.before.offset}" if one.before else "has no offset: it was lost"


def _counts(one: Move) -> str:
    counts = [f", at most {one.num_again} records again"] * bool(one.num_again)
    counts += [f", at most {one.num_skipped} records never"] * bool(one.num_skipped)
    return "".join(counts)


def as_object(stage: Stage, planned: Sequence[Move], *, is_done: bool) -> dict[str, Any]:
    """The plan, for programs."""
    partitions = [
        {
            "partition": str(one.at),
            "from": one.before.offset if one.before else None,
            "to": one.after.offset,
            "again": one.num_again,
            "skipped": one.num_skipped,
        }
        for one in planned
    ]
    return {"stage": stage.name, "moved": is_done, "partitions": partitions, "effects": effects_of(stage, planned)}


def _check_stopped(admin: Admin, run: Run, stage: Stage) -> None:
    if goes_on(admin, [run.topic(stage.name)]):
        raise UnavailableError(
            f"stage {stage.name}: expected no process of it, got one in its consumer group; stop it first "
            "(one with a --member name keeps its place for 45 s after its end)"
        )


def _ranges(admin: Admin, run: Run, stage: Stage) -> dict[Partition, tuple[int, int]]:
    """First offset and last stable end of each partition of the stage's inputs."""
    names = {run.topic(topic.name): topic.name for topic in stage.divided}
    found = {name: state.num_partitions for name, state in admin.describe(list(names)).items()}
    if len(found) < len(names):
        raise ConfigError(f"run.name: expected a run with topics, got {run.run.name!r} without; {name_another(run)}")
    begins, ends = admin.start_offsets(found), admin.end_offsets(found)
    return {Partition(names[name], number): (begin, ends[name, number]) for (name, number), begin in begins.items()}


def _positions(admin: Admin, run: Run, stage: Stage) -> Positions:
    names = {run.topic(topic.name): topic.name for topic in stage.divided}
    found = admin.positions(run.topic(stage.name))
    return {Partition(names[name], number): committed for (name, number), committed in found.items() if name in names}


def _targets(admin: Admin, run: Run, target: Target, ranges: Ranges) -> dict[Partition, int]:
    if target.places:
        return target.places
    if target.is_earliest:
        return {at: begin for at, (begin, _) in ranges.items()}
    sizes = {run.topic(at.topic): 1 + max(other.number for other in ranges if other.topic == at.topic) for at in ranges}
    found = admin.offsets_since(sizes, target.at)
    offsets = {at: found[run.topic(at.topic), at.number] for at in ranges}
    return {at: min(offset, ranges[at][1]) if offset >= 0 else ranges[at][1] for at, offset in offsets.items()}


async def _check_letters(run: Run, stage: Stage, planned: Sequence[Move]) -> None:
    async with Resources(run).opened() as transport, aclosing(scan_transport(transport, [DEAD_LETTERS])) as letters:
        await check_letters(stage, planned, letters)


async def _move(admin: Admin, run: Run, stage: Stage, planned: Sequence[Move]) -> None:
    async with Resources(run).opened() as transport:
        await commit_moves(transport, stage, DEAD_LETTERS, planned, lambda: asyncio.to_thread(_positions, admin, run, stage))
