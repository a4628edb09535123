"""Whole runs of `tests.audit_runs` in the log of an in-memory transport, with references that hold."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gagar.records import LogRef, encode
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.routing import key_of
from gagar.stream.transport import Send
from tests.audit_runs import TOPIC_OF, resolved, symbols
from topology.resources import Resources
from topology.topics import ALL_TOPICS, TOPICS

NUM_PARTITIONS = 3
NAME_OF = {topic.record: topic.name for topic in TOPICS}


def empty_log() -> MemoryLog:
    """All topics of a run."""
    return MemoryLog(ALL_TOPICS, NUM_PARTITIONS)


def lay(log: MemoryLog, records: Sequence[Any], at: float = 1000.0) -> None:
    """Appends records, upstream first, with their symbols resolved; those of one call refer to each other."""
    places: dict[str, LogRef] = {}
    order = [*TOPIC_OF, *(kind for kind in NAME_OF if kind not in TOPIC_OF)]
    for record in sorted(records, key=lambda record: order.index(type(record))):
        ref = append(log, resolved(record, places), at)
        places |= {name: ref for name in symbols(record) if name not in places}


def append(log: MemoryLog, record: Any, at: float = 1000.0, headers: Sequence[tuple[str, bytes]] = ()) -> LogRef:
    """Appends one record as it is."""
    send = Send(topic=NAME_OF[type(record)], key=key_of(record).encode(), value=encode(record), headers=headers)
    return log.append(send, at=at)


def transport_of(log: MemoryLog) -> MemoryTransport:
    return MemoryTransport(log)


def log_of_commands(monkeypatch: pytest.MonkeyPatch, directory: Path) -> MemoryLog:
    """A log that every command reads in place of a cluster's, in a working directory without runs."""
    log = empty_log()
    monkeypatch.setattr(Resources, "_kafka", lambda resources: transport_of(log))
    monkeypatch.setattr("gagar.cli.saved_run.cluster_to_read", lambda run: nullcontext())
    monkeypatch.chdir(directory)
    return log
