"""Reads a rank's share of the token records ahead of their step: in the background, checked, bounded by what rank 0 asks
for.

In: GroupLoads. Out: per group its samples of this rank, or why it cannot be trained. A group is loaded as a whole or not at
all. An outage is waited out; only a record that is gone or wrong makes a group bad.
"""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Future, wait

from consumers.learner.plan import GroupLoad, LoadReport, MemberLoad
from gagar.errors import BadRecordError, UnavailableError
from gagar.records import TrajectoryTokens
from gagar.stream.handlers import References
from gagar.training.background import Background
from gagar.training.batch import Sample, check_trainable

logger = logging.getLogger(__name__)
RETRY_S = (0.5, 1.0, 2.0, 5.0)
"""Pauses between attempts while the log cannot be read; the last one again and again."""

Loaded = list[TrajectoryTokens]


class TokenLoader:
    """The tokens of this rank, from the moment that their group is chosen until it is trained or forgotten."""

    def __init__(self, references: References, background: Background, rank: int, vocab_size: int) -> None:
        self._references = references
        self._background = background
        self._rank = rank
        self._vocab_size = vocab_size
        self._groups: dict[str, GroupLoad] = {}
        self._reads: dict[str, Future[Loaded]] = {}
        self._reported: set[str] = set()

    def start(self, groups: Sequence[GroupLoad]) -> None:
        """Begins to read this rank's part of `groups`."""
        for group in groups:
            self._groups[group.group_id] = group
            self._reads[group.group_id] = self._background.submit(self._read(group.group_id, self._mine(group)))

    def forget(self, group_ids: Sequence[str]) -> None:
        """Lets go of groups, read or not."""
        for group_id in group_ids:
            self._groups.pop(group_id, None)
            self._reported.discard(group_id)
            read = self._reads.pop(group_id, None)
            if read is not None:
                read.cancel()

    def wait(self, timeout_s: float) -> None:
        """Returns when all reads have ended, or after `timeout_s`."""
        wait(list(self._reads.values()), timeout_s)

    def report(self) -> LoadReport:
        """What has ended since the last report."""
        loaded: list[str] = []
        bad: dict[str, str] = {}
        for group_id, read in self._reads.items():
            if group_id in self._reported or not read.done():
                continue
            self._reported.add(group_id)
            error = read.exception()
            if error is None:
                loaded.append(group_id)
            elif isinstance(error, BadRecordError):
                bad[group_id] = str(error)
            else:
                raise error
        return LoadReport(loaded=loaded, bad=bad)

    def take(self, group_ids: Sequence[str]) -> tuple[list[GroupLoad], list[Sample]]:
        """The groups of a batch, whole, and this rank's samples of them, in the order of the members that it owns."""
        groups = [self._groups[group_id] for group_id in group_ids]
        samples = []
        for group in groups:
            tokens = self._reads[group.group_id].result(timeout=0)
            mine = self._mine(group)
            samples += [Sample(record, member.advantage) for record, member in zip(tokens, mine, strict=True)]
        return groups, samples

    def _mine(self, group: GroupLoad) -> list[MemberLoad]:
        return [member for member in group.members if member.rank == self._rank]

    async def _read(self, group_id: str, members: Sequence[MemberLoad]) -> Loaded:
        if not members:
            return []
        records = await self._read_with_retries(group_id, members)
        await asyncio.to_thread(self._check, group_id, members, records)
        return records

    async def _read_with_retries(self, group_id: str, members: Sequence[MemberLoad]) -> Loaded:
        attempt = 0
        while True:
            try:
                return await self._references.read([member.tokens for member in members], TrajectoryTokens)
            except UnavailableError as error:
                logger.warning("tokens unreadable group=%s attempt=%d error=%s", group_id, attempt, error)
                await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
                attempt += 1

    def _check(self, group_id: str, members: Sequence[MemberLoad], records: Loaded) -> None:
        for member, record in zip(members, records, strict=True):
            if (record.group_id, record.sample_index) != (group_id, member.sample_index):
                got = f"{record.group_id}/{record.sample_index}"
                raise BadRecordError(f"{member.tokens}: expected tokens of {group_id}/{member.sample_index}, got {got}")
            check_trainable(record, self._vocab_size, member.length, member.num_sampled)
