"""The file of an excerpt: a zip with a manifest and the raw records, so that any tool can open it. No code is ever in it.

`manifest.json` says what the file holds; it is written last, so a file without it is one whose export was broken off. A member
`records/<topic>/<partition>/<run>` holds records of one partition by ascending offset, each as four bytes of length
(big-endian) and a MessagePack array: `Row`. Every member has its sha256 in the manifest. Memory on both sides: a record.
"""

import hashlib
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import IO

import msgspec

from gagar.errors import ConfigError
from gagar.records import LogRef, RunSettings
from gagar.stream.transport import Partition, RawRecord

FORMAT = "gagar-excerpt/1"
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 256 << 20
"""Of a whole run in a thousand partitions; a file that claims more is none of ours."""
MAX_ROW_BYTES = 128 << 20
"""More than the largest record of any topic."""
LENGTH_BYTES = 4


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One record."""

    offset: int
    """Where it lay."""
    time_ms: int
    """Broker time, Unix milliseconds."""
    key: bytes
    value: bytes | None
    """None: a tombstone."""
    headers: list[tuple[str, bytes]]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one partition, by ascending offset."""

    name: str
    """In the zip."""
    topic: str
    """Its name without the run's prefix."""
    number: int
    """Of the partition."""
    num_records: int
    num_bytes: int
    """Not compressed."""
    sha256: str


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a log began that retention had shortened."""

    topic: str
    number: int
    """Of the partition."""
    offset: int
    """The first one that was left; more than 0."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an excerpt holds and where it comes from."""

    format: str = FORMAT
    gagar: str
    """Version that wrote the file."""
    selection: str
    """What was asked for. Example: `group t-000007`."""
    exported_at: float
    """Unix seconds."""
    num_groups: int
    settings: RunSettings
    """What the run was started with last."""
    begins: list[Begin]
    """Of partitions with records of the excerpt."""
    missing: list[LogRef]
    """Records that others refer to and that were not there, by place: retention had taken them."""
    members: list[Member]

    @property
    def run_name(self) -> str:
        """The run that it is a part of."""
        return str(self.settings.settings.get("run.name", "run"))

    @property
    def num_records(self) -> int:
        return sum(member.num_records for member in self.members)

    @property
    def num_bytes(self) -> int:
        """Of all records, not compressed."""
        return sum(member.num_bytes for member in self.members)


class Format(msgspec.Struct):
    """What every version of the manifest tells."""

    format: str


def gagar_version() -> str:
    """Of this package; `unknown` in a checkout that was not installed."""
    try:
        return version("gagar-rl")
    except PackageNotFoundError:
        return "unknown"


class ExcerptWriter:
    """Writes a file: `add` each record, then `finish`. Partitions are best not interleaved: each change begins a member."""

    def __init__(self, file: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        self._members: list[Member] = []
        self._open: OpenMember | None = None

    def add(self, raw: RawRecord) -> None:
        """Takes the next record."""
        if self._open is None or not self._open.takes(raw):
            self._close()
            name = f"records/{raw.at.topic}/{raw.at.number}/{len(self._members)}"
            self._open = OpenMember(name, raw.at, self._zip.open(name, "w", force_zip64=True))
        self._open.write(raw)

    def partitions(self) -> list[Partition]:
        """Those that records were taken from."""
        self._close()
        return sorted({Partition(member.topic, member.number) for member in self._members})

    def finish(
        self,
        *,
        selection: str,
        exported_at: float,
        num_groups: int,
        settings: RunSettings,
        begins: Mapping[Partition, int],
        missing: list[LogRef],
    ) -> Manifest:
        """Writes the manifest and ends the file."""
        self._close()
        manifest = Manifest(
            gagar=gagar_version(),
            selection=selection,
            exported_at=exported_at,
            num_groups=num_groups,
            settings=settings,
            begins=[Begin(topic=at.topic, number=at.number, offset=begin) for at, begin in begins.items() if begin],
            missing=missing,
            members=self._members,
        )
        self._zip.writestr(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
        self._zip.close()
        return manifest

    def _close(self) -> None:
        if self._open is not None:
            self._members.append(self._open.close())
            self._open = None


class OpenMember:
    """A member that is being written."""

    def __init__(self, name: str, at: Partition, stream: IO[bytes]) -> None:
        self._name = name
        self._at = at
        self._stream = stream
        self._hash = hashlib.sha256()
        self._num_records = self._num_bytes = 0
        self._last = -1

    def takes(self, raw: RawRecord) -> bool:
        """Whether a record comes next in it."""
        return raw.at == self._at and raw.offset > self._last

    def write(self, raw: RawRecord) -> None:
        row = Row(raw.offset, round(raw.time * 1000), raw.key, raw.value, list(raw.headers))
        data = msgspec.msgpack.encode(row)
        data = len(data).to_bytes(LENGTH_BYTES, "big") + data
        self._stream.write(data)
        self._hash.update(data)
        self._num_records += 1
        self._num_bytes += len(data)
        self._last = raw.offset

    def close(self) -> Member:
        self._stream.close()
        return Member(
            name=self._name,
            topic=self._at.topic,
            number=self._at.number,
            num_records=self._num_records,
            num_bytes=self._num_bytes,
            sha256=self._hash.hexdigest(),
        )


class ExcerptFile:
    """Reads a file. Everything that is wrong with it is a ConfigError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._told():
            self._zip = zipfile.ZipFile(path)
        try:
            self.manifest = self._read_manifest()
        except BaseException:
            self._zip.close()
            raise

    def close(self) -> None:
        self._zip.close()

    def offsets(self) -> dict[Partition, "array[int]"]:
        """Reads all of the file and compares it with its checksums: the offsets of the records of each partition, ascending."""
        found: dict[Partition, array[int]] = {}
        for member in self.manifest.members:
            places, digest = found.setdefault(Partition(member.topic, member.number), array("q")), hashlib.sha256()
            before = len(places)
            for data in self._chunks(member):
                digest.update(data)
                places.append(self._row(member, data).offset)
            if (digest.hexdigest(), len(places) - before) != (member.sha256, member.num_records):
                raise self._broken(f"{member.name} with other bytes than its checksum says; copy the file again")
        for at, places in found.items():
            if any(earlier >= later for earlier, later in pairwise(places)):
                found[at] = array("q", sorted(places))
            if any(earlier == later for earlier, later in pairwise(found[at])):
                raise self._broken(f"two records at one place of {at}")
        return found

    def rows(self, member: Member) -> Iterator[Row]:
        """The records of a member."""
        return (self._row(member, data) for data in self._chunks(member))

    def _chunks(self, member: Member) -> Iterator[bytes]:
        """Each record as it lies in the file, its length first."""
        with self._told(), self._zip.open(member.name) as stream:
            while head := stream.read(LENGTH_BYTES):
                length = int.from_bytes(head, "big")
                if length > MAX_ROW_BYTES:
                    raise self._broken(f"a record of {length} bytes in {member.name}")
                data = stream.read(length)
                if len(head) < LENGTH_BYTES or len(data) < length:
                    raise self._broken(f"a record that is cut off in {member.name}")
                yield head + data

    def _row(self, member: Member, data: bytes) -> Row:
        try:
            return msgspec.msgpack.decode(memoryview(data)[LENGTH_BYTES:], type=Row)
        except msgspec.DecodeError as error:
            raise self._broken(f"a record in {member.name} of another form ({error})") from error

    def _read_manifest(self) -> Manifest:
        with self._told():
            try:
                info = self._zip.getinfo(MANIFEST)
            except KeyError:
                raise self._broken(f"a zip without {MANIFEST}") from None
            if info.file_size > MAX_MANIFEST_BYTES:
                raise self._broken(f"a {MANIFEST} of {info.file_size} bytes")
            data = self._zip.read(info)
        try:
            found = msgspec.json.decode(data, type=Format).format
            if found == FORMAT:
                return msgspec.json.decode(data, type=Manifest)
        except msgspec.DecodeError as error:
            raise self._broken(f"a {MANIFEST} of another form ({error})") from error
        raise ConfigError(f"{self._path}: expected a file of the form {FORMAT}, got {found}; use the version that wrote it")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turns what reading a zip raises into ours."""
        try:
            yield
        except FileNotFoundError:
            raise self._broken("nothing there") from None
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
            raise self._broken(str(error) or type(error).__name__) from error

    def _broken(self, got: str) -> ConfigError:
        return ConfigError(f"{self._path}: expected a file of `gagar topics export`, got {got}")
