"""A part of a run goes into a file and out of it into another log, where it says what it said before."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gagar.audit.findings import Law
from gagar.audit.fold import OVERDUE_MARGIN_S, AuditTerms
from gagar.errors import ConfigError, UnavailableError
from gagar.excerpts import container
from gagar.excerpts.container import MANIFEST, ExcerptFile, Row
from gagar.excerpts.importing import check_empty, known_topics
from gagar.excerpts.relocation import NOWHERE
from gagar.history.group import read_group
from gagar.history.group_view import as_object
from gagar.records import DeadLetter, LogRef, RolloutRequest, RunSettings, Trajectory, TrajectoryTokens, decode, encode
from gagar.stream.memory.transport import MemoryLog
from gagar.stream.retries import RetryMark, mark_in, marked
from gagar.stream.transport import Partition, RawRecord, Send
from tests.audit_runs import IN_WAY, STEPS, make_run, way_of
from tests.builders import make_request
from tests.contract.world import make_trajectory
from tests.excerpts import HERE, audited, export_to, import_from, records_of
from tests.logs import NUM_PARTITIONS, append, empty_log, lay, transport_of
from topology.topics import ALL_TOPICS, TOPICS

TERMS = AuditTerms(max_staleness=2, grace_s=30.0)
LATE = replace(TERMS, now=1600.0 + TERMS.grace_s + OVERDUE_MARGIN_S + 1.0)
IDS = ("t-000000", "t-000001", "t-000002", "e-000001-0000")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "part.zip"


def used_log() -> MemoryLog:
    """One in which an import was broken off: offsets are taken, nothing is to be seen."""
    log = empty_log()
    lay(log, [record for number in range(5) for record in way_of(f"t-{number:06d}")])
    for part in log.partitions.values():
        for entry in part.entries:
            entry.time = 0.0  # as a marker
    return log


def said(raws: Sequence[RawRecord], group_ids: Sequence[str] = IDS) -> list[tuple[Any, ...]]:
    """What records say, without where they and others lie."""
    keys = {group_id.encode() for group_id in group_ids}
    return sorted(
        (raw.at, raw.time, raw.key, tuple(raw.headers), repr(without_places(msgspec.msgpack.decode(raw.value or b"\xc0"))))
        for raw in raws
        if raw.key in keys or raw.at.topic == "policy-versions"
    )


def without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: 0 if key == "offset" else without_places(item) for key, item in value.items()}
    return [without_places(item) for item in value] if isinstance(value, list) else value


def number_of(log: MemoryLog, group_id: str) -> int:
    return transport_of(log).number_of(group_id.encode(), NUM_PARTITIONS)


@pytest.mark.parametrize("ids", [IDS[:1], IDS[1:3], IDS], ids=["one", "two", "all"])
@pytest.mark.parametrize("make", [empty_log, used_log])
async def test_an_imported_part_says_the_same_and_is_clean(path: Path, ids: tuple[str, ...], make: Any) -> None:
    there, here = empty_log(), make()
    lay(there, way_of("t-000009"))
    lay(there, make_run())
    manifest = await export_to(path, there, *ids)
    await import_from(path, here)
    assert manifest.num_groups == len(ids)
    assert said(records_of(here)) == said(records_of(there), ids)
    result = await audited(here, TERMS)
    assert result.findings == []
    assert result.num_requested == len(ids)
    assert result.num_followed > 0
    assert [decode(RunSettings, raw.value or b"") for raw in records_of(here) if raw.at.topic == "run-settings"] == [HERE]


@pytest.mark.parametrize("law", [law for law in IN_WAY if law is not Law.REQUESTED], ids=lambda law: str(law.value))
async def test_what_an_audit_holds_against_a_group_there_it_holds_against_it_here(path: Path, law: Law) -> None:
    there, here = empty_log(), used_log()
    lay(there, [*STEPS, *IN_WAY[law][0](way_of("t-000007")), *way_of("t-000003")])
    await export_to(path, there, "t-000007", "t-000003")
    await import_from(path, here)
    expected = await audited(there, LATE)
    assert law in expected.broken
    assert (await audited(here, LATE)).broken == expected.broken


async def shown(log: MemoryLog, group_id: str) -> str:
    """As `gagar show group --json` tells it, but for offsets."""
    history = await read_group(transport_of(log), TOPICS, group_id)
    return re.sub(r"\]@[0-9]+", "]@", msgspec.json.encode(as_object(history)).decode())


async def test_it_is_shown_as_there(path: Path) -> None:
    there, here = empty_log(), used_log()
    lay(there, make_run())
    at = Partition("trajectories", number_of(there, "t-000001"))
    there.truncate(at, there.partitions[at].end - 2)
    await export_to(path, there, "t-000001", "t-000002")
    await import_from(path, here)
    for group_id in ("t-000001", "t-000002"):
        assert await shown(here, group_id) == await shown(there, group_id)
    assert '"missing":["trajectories[' in await shown(here, "t-000001") + await shown(here, "t-000002")


async def test_what_retention_had_taken_is_gone_here_too_and_held_against_nobody(path: Path) -> None:
    there, here = empty_log(), empty_log()
    lay(there, make_run())
    at = Partition("trajectory-tokens", number_of(there, "t-000001"))
    there.truncate(at, there.partitions[at].end - 2)
    manifest = await export_to(path, there, "t-000001")
    assert len(manifest.missing) == 2
    await import_from(path, here)
    expected, result = await audited(there, TERMS), await audited(here, TERMS)
    assert result.findings == []
    assert 0 < result.num_retired_references <= expected.num_retired_references
    assert here.partitions[at].start > 0
    assert here.partitions[at._replace(topic="trajectories")].start == 0


async def test_a_reference_to_a_record_that_never_was_leads_nowhere(path: Path) -> None:
    there, here = empty_log(), empty_log()
    lay(there, [make_request(group_size=1)])
    append(there, make_trajectory(make_request(), request=LogRef(topic="rollout-requests", partition=0, offset=50)))
    await export_to(path, there, "t-000000")
    await import_from(path, here)
    [trajectory] = [decode(Trajectory, raw.value or b"") for raw in records_of(here) if raw.at.topic == "trajectories"]
    assert trajectory.attempt.request.offset == NOWHERE + 50


async def test_records_that_come_out_of_order_lie_in_order_here(path: Path) -> None:
    """A trajectory that nothing refers to is found after those that a verdict refers to."""
    there, here = empty_log(), empty_log()
    way = way_of("t-000000")
    attempts = RolloutRequest | TrajectoryTokens | Trajectory
    lay(there, [record for record in way if isinstance(record, attempts) or getattr(record, "sample_index", 0) in (1, 3)])
    manifest = await export_to(path, there, "t-000000")
    assert len([member for member in manifest.members if member.topic == "trajectories"]) > 1
    await import_from(path, here)
    samples = [decode(Trajectory, raw.value or b"").sample_index for raw in records_of(here) if raw.at.topic == "trajectories"]
    assert samples == [0, 1, 2, 3]


async def test_dead_letters_their_bytes_and_their_retries_refer_to_what_they_referred_to(path: Path) -> None:
    there, here = empty_log(), used_log()
    asked = append(there, make_request(group_size=1))
    rejected = make_trajectory(make_request(), request=asked)
    source = append(there, rejected, 1001.0)
    letter = DeadLetter(stage="verifier", source=source, error="down", key=b"t-000000", value=encode(rejected))
    letter_ref = append(there, letter, 1002.0)
    mark = RetryMark(stage="verifier", source=source, letter=letter_ref)
    copy = append(there, rejected, 1003.0, headers=marked([("a", b"offset")], mark))
    append(there, replace(letter, source=letter_ref, value=b"", retried_as=copy), 1003.0)
    await export_to(path, there, "t-000000")
    await import_from(path, here)
    found: dict[str, list[RawRecord]] = {}
    for raw in records_of(here):
        found.setdefault(raw.at.topic, []).append(raw)
    [request], [first, second] = found["rollout-requests"], found["trajectories"]
    [told, retried] = [decode(DeadLetter, raw.value or b"") for raw in found["dead-letters"]]
    assert told.source == first.ref
    assert decode(Trajectory, told.value).attempt.request == request.ref
    assert (retried.source, retried.retried_as) == (found["dead-letters"][0].ref, second.ref)
    assert mark_in(second.headers) == RetryMark(stage="verifier", source=first.ref, letter=found["dead-letters"][0].ref)
    assert dict(second.headers)["a"] == b"offset"


async def test_fields_of_tomorrow_and_records_that_nobody_can_read_stay(path: Path) -> None:
    there, here = empty_log(), used_log()
    asked = append(there, make_request(group_size=1))
    plain = msgspec.msgpack.decode(encode(make_trajectory(make_request(), request=asked)))
    plain["attempt"]["request"]["epoch"] = 3
    values = [msgspec.msgpack.encode(plain | {"tomorrow": [{"x": None}]}), b"\xc1 offset", b"\x91" * 9000 + b"offset"]
    for value in values:
        there.append(Send(topic="trajectories", key=b"t-000000", value=value), at=1001.0)
    await export_to(path, there, "t-000000")
    await import_from(path, here)
    got = [raw.value or b"" for raw in records_of(here) if raw.at.topic == "trajectories"]
    assert got[1:] == values[1:]
    [request] = [raw for raw in records_of(here) if raw.at.topic == "rollout-requests"]
    plain["attempt"]["request"]["offset"] = request.offset
    assert msgspec.msgpack.decode(got[0]) == plain | {"tomorrow": [{"x": None}]}


async def test_an_import_whose_commit_got_lost_says_that_it_does_not_know(path: Path) -> None:
    there, here = empty_log(), empty_log()
    lay(there, make_run())
    await export_to(path, there, *IDS)
    here.faults["lost answer"] = [UnavailableError("gone")]
    with pytest.raises(UnavailableError, match=r"^import: expected to be committed, got gone; whether all of it is in the run"):
        await import_from(path, here)
    assert (await audited(here, TERMS)).findings == []


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("call", ["begin", "send", "answer", "commit"])
async def test_an_import_that_is_broken_off_leaves_nothing_and_is_done_again(path: Path, call: str, is_cut: bool) -> None:
    there, here = empty_log(), empty_log()
    lay(there, make_run())
    at = Partition("trajectories", number_of(there, IDS[0]))
    there.truncate(at, int(is_cut))
    await export_to(path, there, *IDS)
    for _ in range(2):
        here.faults[call] = [UnavailableError("gone")]
        with pytest.raises(UnavailableError):
            await import_from(path, here)
        assert records_of(here) == []
        await check_empty(transport_of(here), ALL_TOPICS)
    await import_from(path, here)
    assert (await audited(here, TERMS)).findings == (await audited(there, TERMS)).findings


async def test_a_run_with_records_is_refused(path: Path) -> None:
    here = empty_log()
    lay(here, way_of("t-000000"))
    with pytest.raises(ConfigError, match=r"^run.name: expected a run without records, got one with .*; set another"):
        await check_empty(transport_of(here), ALL_TOPICS)


async def test_an_import_beside_somebody_who_writes_ends(path: Path) -> None:
    there, here = empty_log(), empty_log()
    lay(there, make_run())
    await export_to(path, there, *IDS)

    class Meddled(type(transport_of(here))):  # type: ignore[misc]
        async def start_producer(self, *args: Any) -> Any:
            producer = await super().start_producer(*args)
            begin = producer.begin

            async def meddle() -> None:
                await begin()
                append(here, make_request("t-000000"))

            producer.begin = meddle
            return producer

    with pytest.raises(UnavailableError, match="let nobody else write to this run"):
        await import_from(path, here, Meddled(here))
    assert len(records_of(here)) == 1


async def test_an_import_that_takes_too_long_ends_and_leaves_nothing(path: Path) -> None:
    there, here = empty_log(), empty_log()
    lay(there, make_run())
    await export_to(path, there, *IDS)
    with pytest.raises(UnavailableError, match=r"^import: expected all .* records within 1e-09 s, got no end; nothing of it"):
        await import_from(path, here, timeout_s=1e-9)
    assert records_of(here) == []


async def damaged(path: Path) -> bytes:
    log = empty_log()
    lay(log, make_run())
    await export_to(path, log, "t-000000")
    return path.read_bytes()


def opened(path: Path) -> list[Row]:
    """All records of a file."""
    file = ExcerptFile(path)
    try:
        file.offsets()
        return [row for member in file.manifest.members for row in file.rows(member)]
    finally:
        file.close()


async def test_a_file_that_is_damaged_is_refused_before_anything_is_written(path: Path) -> None:
    """Some bits of a zip say nothing, such as a time of day."""
    data, num_refused = await damaged(path), 0
    whole = opened(path)
    places = range(40, len(data), 97)
    for place in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            assert opened(path) == whole
        except ConfigError as error:
            num_refused += "expected a file of" in str(error)
    assert num_refused > len(places) // 2
    for end in (0, 1, len(data) // 2, len(data) - 30):
        path.write_bytes(data[:end])
        with pytest.raises(ConfigError, match="expected a file of `gagar topics export`, got"):
            opened(path)


def rewritten(path: Path, **changes: bytes | None) -> None:
    """The file with members replaced (or, None, left out), by what their names begin with."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            changed = next((new for start, new in changes.items() if name.startswith(start)), data)
            if changed is not None:
                file.writestr(name, changed)


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"manifest": None}, "got a zip without manifest.json"),
        ({"manifest": b"{}"}, "got a manifest.json of another form"),
        ({"manifest": b'{"format": "gagar-excerpt/2"}'}, "a file of the form gagar-excerpt/1, got gagar-excerpt/2"),
        ({"manifest": b'{"format": "gagar-excerpt/1"}'}, "got a manifest.json of another form"),
        ({"records": None}, "got .*There is no item named"),
        ({"records": b"\0\0\0\1\xc1"}, "a record in records/.* of another form"),
        ({"records": b"\0\0\0\x09\xc1"}, "a record that is cut off in"),
        ({"records": b"\xff\0\0\0\xc1"}, "a record of 4278190080 bytes"),
        ({"records": b""}, "with other bytes than its checksum says; copy the file again"),
    ],
)
async def test_a_file_of_another_form_is_refused(path: Path, changes: dict[str, bytes | None], got: str) -> None:
    await damaged(path)
    rewritten(path, **changes)
    with pytest.raises(ConfigError, match=got):
        opened(path)


def test_what_is_no_file_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="got nothing there"):
        opened(path)
    with pytest.raises(ConfigError, match="Is a directory"):
        opened(path.parent)


async def test_partitions_that_a_run_does_not_have_are_refused(path: Path) -> None:
    log = empty_log()
    lay(log, make_run())
    manifest = await export_to(path, log, *IDS)
    known_topics(manifest, TOPICS, NUM_PARTITIONS)
    with pytest.raises(ConfigError, match="expected a partition of rollout-requests, "):
        known_topics(manifest, TOPICS, 1)


async def test_a_file_holds_no_more_of_itself_in_memory_than_a_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest read is bounded by a row, however many there are."""
    await damaged(path)
    monkeypatch.setattr(container, "MAX_ROW_BYTES", 10)
    with pytest.raises(ConfigError, match="a record of"):
        opened(path)
    with zipfile.ZipFile(path) as file:
        assert msgspec.json.decode(file.read(MANIFEST))["format"] == container.FORMAT
