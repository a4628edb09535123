"""A source: the work of a lane that reads nothing and makes units from a cursor.

One process acts: the owner of partition 0 of the stage's first table, the only one that has a lane; the others wait. In: the
tables, whole and followed. Out: a unit at a time. Kept: the cursor, in the metadata of the group's offset in that partition;
the offset itself counts units, so that a unit of an unknown outcome turns out to be committed, or not, as a lane's inputs do.

A source that lost its place ends with an error and is started anew: what it knows may be stale.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from gagar.errors import FencedError, GagarError, UnavailableError
from gagar.stream.handlers import Output, Source
from gagar.stream.lanes.context import StageContext
from gagar.stream.lanes.frontier import Frontier
from gagar.stream.lanes.lane import Lane
from gagar.stream.lanes.reading import LaneReader
from gagar.stream.lanes.units import Spot, Unit
from gagar.stream.lanes.work import LostPlaceError, Work
from gagar.stream.limits import retrying
from gagar.stream.readers.tables import TableFollower
from gagar.stream.together import bounded, together
from gagar.stream.transport import Committed, Partition, RawRecord

log = logging.getLogger(__name__)


class SourceWork(Work):
    """See the module. `ended` is set at the planned end."""

    def __init__(self, lane: Lane, source: Source, tables: TableFollower, context: StageContext, ended: asyncio.Event) -> None:
        self._stage = context.stage.name
        self._lane = lane
        self._source = source
        self._tables = tables
        self._router = context.router
        self._limits = context.limits
        self._counters = context.counters
        self._ended = ended
        self._is_loaded = False
        self._cursor: bytes | None = None
        """After the last unit made; none before the first take-over."""
        self._before = b""
        """The one before that unit: committed if the unit is not."""
        self._at = Partition("", 0)
        self._frontier = Frontier()

    def resume(self, frontiers: Mapping[Partition, Frontier]) -> None:
        """Takes the committed cursor, or compares it: only a unit that waits for its commit may have moved it."""
        [(self._at, self._frontier)] = frontiers.items()
        if self._cursor is None:
            self._cursor = self._frontier.note
            self._source.restore(self._cursor)
            log.info("source took its place stage=%s cursor_bytes=%d", self._stage, len(self._cursor))
        elif not self._is_own(self._frontier.note):
            raise self._lost_place()
        self._frontier.note = self._cursor

    async def run(self, reader: LaneReader) -> None:
        """Makes units until nothing is due ever again."""
        try:
            if not self._is_loaded:
                await self._tables.load()
                self._is_loaded = True
            await together(self._tables.follow(), self._produce())
        except (FencedError, UnavailableError):
            raise
        except GagarError as error:
            if await self._has_lost_place():  # the tables tell of a successor's records
                raise self._lost_place() from error
            raise

    async def _produce(self) -> None:
        while await self._lane.opened():
            self._tables.changed.clear()
            await self._lane.flush()
            unit = self._source.next_unit()
            if unit is not None:
                self._make(*unit)
            elif self._source.is_done:
                log.info("planned end stage=%s", self._stage)
                self._ended.set()
                return
            else:
                await bounded(self._tables.changed.wait(), self._limits.tick_s)

    def _make(self, outputs: Sequence[Output], cursor: bytes) -> None:
        if self._cursor is None or cursor == self._cursor:
            raise GagarError(f"stage {self._stage}: expected a cursor that moves with each unit, got {cursor!r} again")
        offset = self._frontier.next
        source = RawRecord(at=self._at, offset=offset, key=b"", value=None, time=0.0)
        unit = Unit(inputs=(Spot(self._at, offset),), outputs=self._router.encode_all(outputs), kind="made", source=source)
        self._frontier.deliver(offset)
        self._before, self._cursor, self._frontier.note = self._cursor, cursor, cursor
        self._counters.delivered += len(outputs)
        self._lane.finish(unit)

    async def _has_lost_place(self) -> bool:
        """Waits for a log that is away: only it can tell a cursor that was lost from one that a successor has moved."""
        found: dict[Partition, Committed] = await retrying(f"place of {self._stage}", self._limits)(self._lane.committed)
        [committed] = found.values()
        return not self._is_own(Frontier.restore(committed.offset, committed.metadata).note)

    def _is_own(self, committed: bytes) -> bool:
        return committed == self._cursor or (len(self._lane.queue) > 0 and committed == self._before)

    def _lost_place(self) -> LostPlaceError:
        return LostPlaceError(f"stage {self._stage}: expected its own cursor, got another's; start it again")
