"""Excerpts between logs in memory, and the audit of such a log."""

import io
from collections.abc import Mapping
from pathlib import Path

from gagar.audit.fold import Audit, AuditTerms
from gagar.audit.references import broken_claims
from gagar.audit.result import AuditResult
from gagar.excerpts.container import ExcerptFile, ExcerptWriter, Manifest
from gagar.excerpts.exporting import ExportedPart, export_groups
from gagar.excerpts.importing import Importer
from gagar.records import RunSettings
from gagar.stream.memory.transport import MemoryLog
from gagar.stream.readers.references import LogReferences
from gagar.stream.readers.scans import scan_transport
from gagar.stream.transport import Partition, RawRecord, Transport
from tests.logs import transport_of
from topology.stages import upstream_first
from topology.topics import ALL_TOPICS, TOPICS, TRAJECTORIES, TRAJECTORY_TOKENS

SETTINGS = RunSettings(settings={"run.name": "there"}, host="far", directory="/runs/there", at=900.0)
HERE = RunSettings(settings={"run.name": "here"}, host="far", directory="/runs/there", at=900.0, imported_from="a file")


async def export_to(path: Path, log: MemoryLog, *group_ids: str) -> Manifest:
    """Writes an excerpt of a log."""
    selection = ExportedPart(text=f"group {', '.join(group_ids)}", group_ids=group_ids, settings=SETTINGS, at=2000.0)
    buffer = io.BytesIO()
    manifest = await export_groups(transport_of(log), TOPICS, selection, ExcerptWriter(buffer), lambda raw: None)
    path.write_bytes(buffer.getvalue())
    return manifest


async def import_from(path: Path, log: MemoryLog, transport: Transport | None = None, timeout_s: float = 60.0) -> None:
    """Reads it into another log."""
    file = ExcerptFile(path)
    importer = Importer(file, file.offsets(), transport or transport_of(log), ALL_TOPICS, HERE)
    try:
        await importer.run(MemoryBounds(log), lambda row: None, timeout_s)
    finally:
        file.close()


class MemoryBounds:
    """`LogBounds` of a log in memory."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def ends(self) -> dict[Partition, int]:
        return {at: part.end for at, part in self._log.partitions.items()}

    async def begin_at(self, offsets: Mapping[Partition, int], /) -> None:
        for at, begin in offsets.items():
            self._log.truncate(at, begin)


def records_of(log: MemoryLog) -> list[RawRecord]:
    """All that readers see, but for tombstones."""
    found = [raw for at in log.partitions for raw in log.visible(at, log.partitions[at].start, 10**6)[0]]
    return [raw for raw in found if raw.value is not None]


async def audited(log: MemoryLog, terms: AuditTerms) -> AuditResult:
    """As `gagar audit` does it."""
    transport = transport_of(log)
    ranges = {(at.topic, at.number): (part.start, part.last_stable) for at, part in log.partitions.items()}
    audit = Audit(terms, ranges)
    for topic in upstream_first():
        if topic != TRAJECTORY_TOKENS:
            async for delivery in scan_transport(transport, [topic]):
                audit.apply(delivery)
    followed = {topic.name: topic.record for topic in (TRAJECTORIES, TRAJECTORY_TOKENS)}
    references = LogReferences(transport, [TRAJECTORIES, TRAJECTORY_TOKENS])
    async for _, finding in broken_claims(audit.claims(), references, followed):
        audit.hold(finding)
    return audit.result()
