"""References under audit: does each lie inside its log, and is what lies there really of the attempt that refers to it?

In: every claim that a record makes on another, and where the logs begin and end. Out: findings; a few claims to follow, the
same in every audit of the same topics, in whatever order they are read; and what is found where they point.
"""

import heapq
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gagar.audit.findings import Finding, Law
from gagar.errors import BadRecordError
from gagar.records import LogRef
from gagar.stream.handlers import References
from gagar.stream.pinned_topics import wrong_numbers
from gagar.stream.spec import Topic

NUM_CLAIMS = 256
"""References that are followed, at most."""
Ranges = Mapping[tuple[str, int], tuple[int, int]]
"""First offset and end offset by topic and partition; before the first, retention has taken what there was."""


def broken_partitions(topics: Iterable[Topic], num_partitions: int, ranges: Ranges) -> Iterator[Finding]:
    """Topics whose numbers of partitions differ from the run file's, or from each other: groups are torn apart."""
    numbers = Counter(name for name, _ in ranges)
    for text in wrong_numbers(topics, num_partitions, numbers):
        yield Finding(Law.PARTITIONS, text)


class Claim(NamedTuple):
    """A record of an attempt says that another of it lies there."""

    ref: LogRef
    group_id: str
    sample_index: int


class ClaimSample:
    """A sample of claims: those whose places in the log have the smallest hashes."""

    def __init__(self, size: int = NUM_CLAIMS) -> None:
        self._size = size
        self._heap: list[tuple[int, Claim]] = []
        """Hashes negated: the largest comes first, to go."""

    def offer(self, claim: Claim) -> None:
        """A claim that may be taken; a second time it is the same one."""
        ref = claim.ref
        entry = -zlib.crc32(f"{ref.partition}/{ref.offset}/{ref.topic}".encode()), claim
        if len(self._heap) < self._size:
            if entry not in self._heap:
                heapq.heappush(self._heap, entry)
        elif entry > self._heap[0] and entry not in self._heap:
            heapq.heapreplace(self._heap, entry)

    def claims(self) -> list[Claim]:
        """Those that were taken, in the order of the log."""
        return sorted(claim for _, claim in self._heap)


class Resolver:
    """Checks references against the logs' ranges; without ranges it knows nothing against any."""

    def __init__(self, ranges: Ranges | None) -> None:
        self._ranges = ranges
        self._cuts: dict[int, frozenset[str]] = {}
        self.sample = ClaimSample()
        self.num_references = 0
        """References that were checked."""
        self.num_retired = 0
        """Checked references to records that retention has taken."""

    def broken(self, claim: Claim, source: LogRef, *, is_followed: bool = True) -> Iterator[Finding]:
        """A claim of the record at `source`: one past the end of its log is wrong; one before the beginning was right once."""
        if self._ranges is None:
            return
        self.num_references += 1
        ref = claim.ref
        begin, end = self._ranges.get((ref.topic, ref.partition), (0, 0))
        if begin <= ref.offset < end:
            if is_followed:
                self.sample.offer(claim)
        elif 0 <= ref.offset < begin:
            self.num_retired += 1
        else:
            text = f"{source}: expected a reference into the log [{begin}, {end}), got {ref}"
            yield Finding(Law.REFERENCE_IN_LOG, text)

    def retire(self, later: Ranges) -> None:
        """The logs are as `later` says by now."""
        self._ranges = later
        self._cuts.clear()

    def cut(self, partition: int) -> frozenset[str]:
        """The topics of which retention has taken the beginning, in a partition."""
        if partition not in self._cuts:
            ranges = (self._ranges or {}).items()
            self._cuts[partition] = frozenset(topic for (topic, number), (begin, _) in ranges if number == partition and begin)
        return self._cuts[partition]


async def broken_claims(
    claims: Sequence[Claim], references: References, records: Mapping[str, type[Any]]
) -> AsyncIterator[tuple[Claim, Finding]]:
    """The claims that do not hold. `records`: the record type of each topic that they point to."""
    for claim in claims:
        what = f"sample {claim.sample_index} of group {claim.group_id}"
        try:
            [record] = await references.read([claim.ref], records[claim.ref.topic])
        except BadRecordError as error:
            yield claim, Finding(Law.REFERENCE_TO_RECORD, f"{what}: {error}")
            continue
        got = record.group_id, record.sample_index
        if got != (claim.group_id, claim.sample_index):
            text = f"{claim.ref}: expected a record of {what}, got one of sample {got[1]} of group {got[0]}"
            yield claim, Finding(Law.REFERENCE_TO_OWN, text)
