"""`gagar topics export|import`: a part of a run in one file, and from there in a run of its own.

Export: groups, by id, step or time, with every record of theirs, all policy versions and the run's settings. Import: into a
fresh run whose settings are the file's; `--run` and `--set` say which cluster and directory, and what is otherwise here. No
address and no secret is in the file. Memory: ids of groups, what `gagar.history` keeps, eight bytes for each record.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click
import msgspec
from msgspec.structs import replace

from gagar.broker.address import names_cluster
from gagar.cli.audit import since_time
from gagar.cli.history.ids import complete_groups
from gagar.cli.run_file import check_dir, open_run, run_option_pair
from gagar.cli.saved_run import cluster_to_read, is_run_file_given, run_to_read, save_run
from gagar.config import KafkaTable, Run, run_of
from gagar.errors import ConfigError, UnavailableError
from gagar.excerpts.container import ExcerptFile, ExcerptWriter, Manifest
from gagar.excerpts.exporting import ExportedPart, export_groups
from gagar.excerpts.importing import Importer, LogBounds, Places, check_empty, known_topics
from gagar.history.choosing import groups_between
from gagar.history.steps import read_step
from gagar.records import RunSettings
from gagar.stream.kafka.admin import Admin
from gagar.stream.kafka.preflight import check_coordinators
from gagar.stream.transport import Partition, Transport
from topology.resources import Resources
from topology.settings import read_settings, settings_of, tables_of
from topology.topics import ALL_TOPICS, DEAD_LETTERS, TOPICS

MAX_TRANSACTION_S = 900.0
"""What brokers allow if nobody has told them otherwise (`transaction.max.timeout.ms`)."""
SETTLED_S, SETTLED_POLL_S = 90.0, 0.2
"""Brokers end the transaction of a producer that was killed after its time, and write markers a moment after an answer."""
AS_IMPORTED = {"message.timestamp.type": "CreateTime", "retention.ms": "-1", "retention.bytes": "-1"}
"""Settings of the topics of an imported run: its records keep their times, and do not go because these lie far back."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What to export."""

    group_ids: Sequence[str]
    step: int | None
    since: float
    """Unix seconds; 0: not by time."""
    until: float
    """Unix seconds; 0: no end."""

    def check(self) -> None:
        """Raises ConfigError unless one thing is asked for."""
        given = [bool(self.group_ids), self.step is not None, bool(self.since)]
        if sum(given) != 1:
            raise ConfigError(f"gagar topics export: expected one of --group, --step and --since, got {sum(given) or 'none'}")
        if self.until and not 0 < self.since < self.until:
            raise ConfigError("--until: expected a time after --since, got none such")

    def text(self) -> str:
        """For people, in the file."""
        if self.group_ids:
            return f"group {', '.join(self.group_ids)}"
        if self.step is not None:
            return f"step {self.step}"
        return f"requested from {_moment(self.since)}" + (f" to {_moment(self.until)}" if self.until else "")


@click.command("export")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--group", "group_ids", multiple=True, metavar="ID", shell_complete=complete_groups, help="A group; repeatable.")
@click.option("--step", type=click.IntRange(min=1), help="The groups that the learner ended at a step.")
@click.option(
    "--since", callback=since_time, metavar="WHEN", help="Groups requested since then: 30m, 2h, 1d, or an ISO time (UTC)."
)
@click.option("--until", callback=since_time, metavar="WHEN", help="With --since: and before then.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object at the end.")
@run_option_pair
@click.pass_context
def export(
    context: click.Context,
    path: Path,
    group_ids: tuple[str, ...],
    step: int | None,
    since: float,
    until: float,
    run_path: str,
    overrides: tuple[str, ...],
    is_json: bool,
) -> None:
    """Write a part of a run to FILE: groups, all that belongs to them, and the run's settings.

    The file is a zip of raw records; whoever gets it can import it into a run of its own and show, replay and audit that. It
    holds tasks' names, transcripts and patches, and no address or secret.
    """
    asked = Asked(group_ids=group_ids, step=step, since=since, until=until)
    asked.check()
    is_file_given = is_run_file_given(context)
    run = run_to_read(run_path, overrides, is_file_given=is_file_given)
    with cluster_to_read(run), new_file(path) as file:
        manifest = asyncio.run(write_excerpt(Resources(run), asked, ExcerptWriter(file)))
    _tell(is_json, exported_object(path, manifest), f"{path}: {_size(manifest)}{_missing(manifest)}")


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which goes if anything fails. Raises ConfigError if there is one of that name."""
    try:
        file = path.open("xb")
    except OSError as error:
        got = "one that is there; name another" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"{path}: expected a name for a new file, got {got}") from error
    try:
        with file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


async def write_excerpt(resources: Resources, asked: Asked, writer: ExcerptWriter) -> Manifest:
    """Exports what is asked for. Raises ConfigError if there is no such group, UnavailableError."""
    settings = await read_settings(resources)
    if settings is None:
        raise UnavailableError(
            f"run {resources.run.run.name}: expected its settings on the log, got none: nobody has started it"
        )
    async with resources.opened() as transport:
        chosen = await _chosen(transport, asked)
        selection = ExportedPart(text=asked.text(), group_ids=chosen, settings=settings, at=time.time())
        with _progress() as advance:
            manifest = await export_groups(transport, TOPICS, selection, writer, advance)
    if manifest.num_groups < max(1, len(asked.group_ids)):
        got = f"{manifest.num_groups} of {len(asked.group_ids)}" if len(asked.group_ids) > 1 else "none"
        raise ConfigError(f"{asked.text()}: expected groups that were requested, got {got} in run {resources.run.run.name}")
    return manifest


async def _chosen(transport: Transport, asked: Asked) -> Sequence[str]:
    if asked.group_ids:
        return asked.group_ids
    if asked.step is not None:
        return [delivery.record.group_id for delivery in (await read_step(transport, TOPICS, asked.step)).outcomes]
    return await groups_between(transport, TOPICS, asked.since, asked.until or float("inf"))


@click.command("import")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object at the end.")
@run_option_pair
@click.pass_context
def import_(context: click.Context, path: Path, run_path: str, overrides: tuple[str, ...], is_json: bool) -> None:
    """Read FILE into a fresh run, to show, replay and audit it as where it comes from.

    The run is called as the one in the file with -imported after it, unless --set run.name=NAME says otherwise, and its
    settings are the file's. --run and --set name the cluster and the directory, and what is otherwise here, such as paths.
    No stage ever works on such a run.
    """
    from gagar.broker.local import cluster_of

    file = ExcerptFile(path)
    try:
        is_file_given = is_run_file_given(context)
        run = imported_run(file.manifest, open_run(run_path, overrides), overrides, is_file_given=is_file_given)
        known_topics(file.manifest, TOPICS, run.kafka.num_partitions)
        if not names_cluster(run):
            check_dir(run)
        offsets = file.offsets()
        with cluster_of(run) as kafka:
            put_in(run, kafka, file, offsets, path.name)
    finally:
        file.close()
    fault = save_run(run)
    if fault:
        click.echo(f"run {run.run.name}: {fault}", err=True)
    text = f"run {run.run.name}: {_size(file.manifest)}{_missing(file.manifest)}; see `gagar show run {run.run.name}`"
    _tell(is_json, {"run": run.run.name, **exported_object(path, file.manifest)}, text)


def imported_run(manifest: Manifest, given: Run, overrides: Sequence[str], *, is_file_given: bool) -> Run:
    """The run that an excerpt becomes: the settings are the file's, the cluster, the directory and what `--set` names are those
    of this machine. Raises ConfigError."""
    tables, keys = tables_of(manifest.settings.settings), {override.partition("=")[0].strip() for override in overrides}
    if "kafka.num_partitions" in keys:
        raise ConfigError("kafka.num_partitions: expected none with an import, got one; records keep their partitions")
    is_named = is_file_given or "run.name" in keys
    name = given.run.name if is_named else f"{manifest.run_name}-imported"
    tables["run"] = {**tables.get("run", {}), "name": name, "dir": str(given.dir), "root": given.root}
    kept = {key: value for key, value in tables.get("kafka", {}).items() if key == "num_partitions"}
    tables["kafka"] = {**given.given.get("kafka", {}), **kept}
    others = tuple(override for override in overrides if not override.strip().startswith(("run.", "kafka.")))
    run = run_of(tables, others, Path(given.root))
    settings_of(run)  # raises for a table that this version does not know
    return run


def put_in(run: Run, kafka: KafkaTable, file: ExcerptFile, offsets: Places, name: str) -> None:
    """Makes the topics and imports. Raises ConfigError for a run with records, UnavailableError."""
    resources = Resources(run)
    asyncio.run(_check_fresh(resources))
    topics = [replace(topic, settings={**topic.settings, **AS_IMPORTED}) for topic in ALL_TOPICS]
    with Admin(kafka) as admin:
        admin.apply(run, topics)
        check_coordinators(admin, run.run.name, DEAD_LETTERS)
        longest = admin.broker_setting("transaction.max.timeout.ms")
        timeout_s = int(longest) / 1000 if longest else MAX_TRANSACTION_S
        # A transport lets its transactions take twice that.
        patient = Resources(replace(run, kafka=replace(run.kafka, transaction_timeout_s=timeout_s / 2)))
        settings = imported_settings(run, file.manifest, name)

        def importer(transport: Transport) -> Importer:
            return Importer(file, offsets, transport, ALL_TOPICS, settings)

        bounds = ClusterBounds(admin, run)
        asyncio.run(_import(patient, importer, file.manifest.num_records, bounds, timeout_s))


def imported_settings(run: Run, manifest: Manifest, name: str) -> RunSettings:
    """What the log of the new run tells of it."""
    origin = f"{name} ({manifest.selection} of run {manifest.run_name})"
    return replace(manifest.settings, settings=settings_of(run), imported_from=origin)


async def _check_fresh(resources: Resources) -> None:
    async with resources.opened() as transport:
        there = await transport.describe(ALL_TOPICS)
        if topics := [topic for topic in ALL_TOPICS if topic.name in there]:
            await check_empty(transport, topics)


class ClusterBounds:
    """`LogBounds` of a run's topics on a cluster."""

    def __init__(self, admin: Admin, run: Run) -> None:
        self._admin = admin
        self._sizes = {run.topic(topic.name): topic.count_partitions(run.kafka.num_partitions) for topic in ALL_TOPICS}
        self._prefix = run.topic("")

    async def ends(self) -> dict[Partition, int]:
        """Raises UnavailableError if a transaction stays open: of the preflight, or of a producer that was killed."""
        deadline = time.monotonic() + SETTLED_S
        while True:
            written = await asyncio.to_thread(self._admin.end_offsets, self._sizes, is_committed=False)
            if written == await asyncio.to_thread(self._admin.end_offsets, self._sizes):
                return {Partition(name.removeprefix(self._prefix), number): end for (name, number), end in written.items()}
            if time.monotonic() > deadline:
                raise UnavailableError(f"import: expected no open transaction on {self._prefix}*, got one; try again later")
            await asyncio.sleep(SETTLED_POLL_S)

    async def begin_at(self, offsets: Mapping[Partition, int], /) -> None:
        named = {(self._prefix + at.topic, at.number): offset for at, offset in offsets.items()}
        await asyncio.to_thread(self._admin.delete_before, named)


async def _import(
    resources: Resources, importer: Callable[[Transport], Importer], num_records: int, bounds: LogBounds, timeout_s: float
) -> None:
    async with resources.opened() as transport:
        with _progress(num_records) as advance:
            await importer(transport).run(bounds, advance, timeout_s)


@contextmanager
def _progress(total: int | None = None) -> Iterator[Callable[[object], None]]:
    """A bar on stderr, where that is a terminal; call what is given with each record."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), "records", TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda record: progress.advance(task)


def exported_object(path: Path, manifest: Manifest) -> dict[str, Any]:
    """What a file holds, for programs."""
    return {
        "file": str(path),
        "selection": manifest.selection,
        "of_run": manifest.run_name,
        "groups": manifest.num_groups,
        "records": manifest.num_records,
        "bytes": manifest.num_bytes,
        "missing": [str(ref) for ref in manifest.missing],
    }


def _tell(is_json: bool, told: Mapping[str, Any], text: str) -> None:
    click.echo(msgspec.json.encode(told).decode() if is_json else text)


def _size(manifest: Manifest) -> str:
    groups = "1 group" if manifest.num_groups == 1 else f"{manifest.num_groups} groups"
    return f"{manifest.selection}: {groups}, {manifest.num_records} records, {manifest.num_bytes} bytes"


def _missing(manifest: Manifest) -> str:
    names = manifest.missing
    return f"; {len(names)} records that they refer to are gone by retention, first {names[0]}" if names else ""


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
