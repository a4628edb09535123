"""Trails: what an audit keeps of each group, in bounded memory over any number of groups.

In: group ids. Out: the trail of a group, to be changed in place; all of them in order. Kept: the newest trails in a dict; the
others in a temporary SQLite database without journal, which nobody else can open and which goes with the store.
"""

import sqlite3
import weakref
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

import msgspec

MAX_RECENT = 8192
"""Trails in memory; about 3 kB each in groups of 8. Records of a group lie close together on each topic."""
CACHE_KIB = 16 * 1024
"""Of the database's pages."""


class Ending(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The facts of an outcome that the laws need."""

    kind: str
    reason: str
    run_id: str
    step: int
    staleness: int

    def __str__(self) -> str:
        where = f" by {self.run_id} at step {self.step}" if self.run_id else ""
        return f"{self.kind}{f' {self.reason}' if self.reason else ''}{where}"


class Trail(msgspec.Struct, array_like=True, kw_only=True):
    """Everything that the topics say about one group."""

    partition: int
    """Number of the partition that holds all records of the group."""
    group_size: int = 0
    """Attempts that the group's requests announce; 0 before the first request."""
    is_evaluation: bool = False
    """Whether the requests are for an evaluation; false before the first request."""
    deadline: float = 0.0
    """The latest deadline of the requests, in broker time; 0 before the first request."""
    agent_timeout_s: float = 0.0
    """Of its requests; 0 before the first request."""
    asked: dict[int, int] = {}
    """sample_index -> offset of its request."""
    rejected: set[int] = set()
    """Offsets of requests, of whatever sample, that some stage has dead-lettered."""
    unreadable: set[int] = set()
    """Offsets of trajectories, of whatever sample, that some stage has dead-lettered."""
    trajectories: dict[int, int] = {}
    """sample_index -> offset of its trajectory."""
    tokens: dict[int, int] = {}
    """sample_index -> offset of its tokens, of a trajectory that has any."""
    own_s: dict[int, float] = {}
    """sample_index -> seconds of the agent's own work, of a trajectory whose agent has begun."""
    broken_off: set[int] = set()
    """Sample indices of trajectories that ended on account of the infrastructure."""
    verdicts: set[int] = set()
    """Sample indices of the verdicts."""
    members: set[int] = set()
    """Sample indices of the members in the group's record on `groups`."""
    num_groups: int = 0
    """Records on `groups`."""
    num_graded: int = 0
    """Records on `graded-groups`."""
    num_advantages: int = 0
    """Records on `advantages`."""
    oldest_version: int = -1
    """The oldest policy version that sampled a token of the group's advantages; -1 if none did."""
    endings: list[Ending] = []
    """In log order, superseded ones too."""

    @property
    def reached(self) -> str:
        """The topic that it has come to."""
        counts = {"advantages": self.num_advantages, "graded-groups": self.num_graded, "groups": self.num_groups}
        counts |= {"verdicts": len(self.verdicts), "trajectories": len(self.trajectories)}
        return next((topic for topic, count in counts.items() if count), "rollout-requests")


class Trails:
    """The trails of all groups."""

    def __init__(self, max_recent: int = MAX_RECENT) -> None:
        """`max_recent`: how many stay in memory."""
        self._max_recent = max_recent
        self._recent: dict[str, Trail] = {}
        # An empty name: a private file that is made when the page cache is full, and has no name by then. One transaction
        # that never ends: nothing is ever flushed for safety's sake.
        # Used by one thread at a time, but it may be another that lets go of the store.
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        for statement in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {statement}")
        self._database.execute("CREATE TABLE trails (group_id TEXT PRIMARY KEY, trail BLOB NOT NULL) WITHOUT ROWID")
        self._database.execute("BEGIN")
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Trail).decode

    @property
    def num_resident(self) -> int:
        """Trails in memory."""
        return len(self._recent)

    def find(self, group_id: str) -> Trail | None:
        """The trail of a group that has one."""
        trail = self._recent.get(group_id)
        if trail is None:
            row = self._database.execute("SELECT trail FROM trails WHERE group_id = ?", (group_id,)).fetchone()
            trail = self._keep(group_id, self._decode(row[0])) if row else None
        return trail

    def open(self, group_id: str, partition: int) -> Trail:
        """The trail of a group; a new one if it has none."""
        return self.find(group_id) or self._keep(group_id, Trail(partition=partition))

    def __iter__(self) -> Iterator[tuple[str, Trail]]:
        """All of them by group id; no other is to be looked for meanwhile."""
        self._write(len(self._recent))
        for group_id, data in self._database.execute("SELECT group_id, trail FROM trails ORDER BY group_id"):
            yield group_id, self._decode(data)

    def _keep(self, group_id: str, trail: Trail) -> Trail:
        if len(self._recent) >= self._max_recent:
            for written in self._write(max(1, self._max_recent // 2)):
                del self._recent[written]
        self._recent[group_id] = trail
        return trail

    def _write(self, count: int) -> list[str]:
        """Brings the oldest `count` of those in memory into the database; in order of id, which lie together there."""
        oldest = sorted(islice(self._recent.items(), count), key=itemgetter(0))
        rows = ((group_id, self._encode(trail)) for group_id, trail in oldest)
        self._database.executemany("INSERT OR REPLACE INTO trails VALUES (?, ?)", rows)
        return [group_id for group_id, _ in oldest]
