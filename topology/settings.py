"""The settings that a run was started with, on the log: each process compares its own with them before it begins anything.

In: a `Run` and its way into the log. Out: the record of its settings; every difference, by its key. Kept: the topic
`run-settings`. Where the cluster is, how it is met and `run.dir` are no settings; the version of gagar and the format of its
records are told as two more. Not promised: that paths which are written alike lead to the same files.
"""

import socket
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import msgspec

from gagar.config import SHARED, Run, convert
from gagar.errors import ConfigError, UnavailableError
from gagar.history.plain import moment
from gagar.records import RECORDS_FORMAT, RunSettings, encode
from gagar.stream.readers.scans import scan_transport, until_visible
from gagar.stream.routing import key_of
from gagar.stream.transport import Send, Transport
from gagar.tasks.kinds import TasksTable
from topology.composition import check_table_names, stage_config
from topology.resources import Resources
from topology.stages import STAGES
from topology.topics import RUN_SETTINGS

FORMAT = "gagar.records_format"
SAME = (FORMAT, "run.seed", "kafka.num_partitions", "policy.", "tasks.", "training.")
"""Beginnings of the keys that are one and the same for all processes of a run; the others say how one process works."""


def settings_of(run: Run) -> dict[str, Any]:
    """Every setting by its key, those that were left out too. Raises ConfigError if a table is wrong."""
    check_table_names(run)
    tables: dict[str, Any] = {name: getattr(run, name) for name in SHARED}
    tables["tasks"] = convert("tasks", run.tables.get("tasks", {}), TasksTable)
    tables |= {stage.table: stage_config(stage, run) for stage in STAGES}
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(tables))
    settings = {key: value for key, value in _flat("", plain) if key != "run.dir" and not is_of_access(key)}
    return settings | {"run.root": run.root, "gagar.version": version("gagar-rl"), FORMAT: RECORDS_FORMAT}


def tables_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a run file with these settings, less those that are not set and what tells of gagar itself. Raises
    ConfigError for a key that is both a table and a value."""
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        *outer, name = key.split(".")
        table = tables
        for part in outer:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{key}: expected {part} to be a table, got {table!r}")
        if value is not None:
            table[name] = value
    tables.pop("gagar", None)
    return tables


def is_of_access(key: str) -> bool:
    """Whether the key says where the cluster is or how it is met."""
    return key.startswith(("kafka.bootstrap_", "kafka.security_", "kafka.sasl_", "kafka.ssl_"))


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(f"{key}.{name}" if key else name, item)
    else:
        yield key, value


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Each setting that is not the same. Example: `training.num_steps: was 4, now 55`."""
    return [
        f"{key}: was {_shown(before.get(key))}, now {_shown(now.get(key))}"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]


def _shown(value: Any) -> str:
    return "not set" if value is None else msgspec.json.encode(value).decode()


def refusal(recorded: RunSettings, run: Run, what_to_do: str) -> str:
    """What to say of each setting that must be as it was recorded and is not; empty if there is none."""
    wrong = [line for line in differences(recorded.settings, settings_of(run)) if line.startswith(SAME)]
    origin = f"on {recorded.host} in {recorded.directory} at {moment(recorded.at)}"
    expected = f"expected the settings that it was started with {origin}"
    return f"run {run.run.name}: {expected}, got {'; '.join(wrong)}; {what_to_do}" if wrong else ""


def check_own(recorded: RunSettings, run: Run) -> None:
    """Raises ConfigError for a run that was imported, whose groups have ended elsewhere, and for one with records of a later
    format than this version of gagar reads."""
    if (got := recorded.settings.get(FORMAT, RECORDS_FORMAT)) > RECORDS_FORMAT:
        raise ConfigError(
            f"run {run.run.name}: expected records of format {RECORDS_FORMAT} or before, got {got} of gagar "
            f"{recorded.settings.get('gagar.version')}; this is gagar {version('gagar-rl')}: install that one, or a later one"
        )
    if recorded.imported_from:
        raise ConfigError(
            f"run {run.run.name}: expected a run to work on, got one that was imported from {recorded.imported_from}; "
            "`gagar show`, `gagar audit` and `gagar replay` read it; to train, take another run.name"
        )


async def check_settings(resources: Resources) -> list[str]:
    """How a process that is about to begin differs from its run where it may. Raises ConfigError if it does where it may not,
    UnavailableError if nobody has started the run."""
    run, recorded = resources.run, await read_settings(resources)
    if recorded is None:
        raise UnavailableError(
            f"run {run.run.name}: expected its settings on topic {RUN_SETTINGS.name}, got none; "
            "run `gagar topics apply` with the --run and --set of this stage"
        )
    check_own(recorded, run)
    if text := refusal(recorded, run, "give this process the run's, or end all stages and start the run with these settings"):
        raise ConfigError(text)
    return differences(recorded.settings, settings_of(run))


async def read_settings(resources: Resources) -> RunSettings | None:
    """What a run was started with last; none if it never was."""
    async with resources.opened() as transport:
        return await _newest(transport)


async def write_settings(resources: Resources) -> None:
    """Records what a run is started with; readers see it when this returns. Raises UnavailableError."""
    settings, directory = settings_of(resources.run), str(resources.run.directory)
    record = RunSettings(settings=settings, host=socket.gethostname(), directory=directory, at=time.time())
    async with resources.opened() as transport:
        producer = await transport.start_producer("settings", [RUN_SETTINGS])
        try:
            await producer.begin()
            send = Send(topic=RUN_SETTINGS.name, key=key_of(record).encode(), value=encode(record))
            await (await producer.send(send))
            await producer.commit("", {})
        finally:
            await producer.close()

        async def is_there() -> bool:
            return await _newest(transport) == record

        await until_visible(is_there, f"topic {RUN_SETTINGS.name}: expected the record just written")


async def _newest(transport: Transport) -> RunSettings | None:
    newest: RunSettings | None = None
    if await transport.describe([RUN_SETTINGS]):
        async for delivery in scan_transport(transport, [RUN_SETTINGS]):
            newest = delivery.record
    return newest
