"""A lane: everything a stage does with one partition number of its inputs.

In: partition p of each input topic. Out: transactions. Kept: the frontier of each partition, in the committed offsets.

A lane begins with the take-over: it makes sure that this process owns the partition now, starts the producer (which fences
every earlier one and settles what it left open), reads the committed offsets and their metadata, and only then reads on. After
any failure it does the same again, keeping the handlers at work: what turns out to be committed is dropped, the rest goes on.
So a lane that another process has taken over in the meantime cannot write, and a stale one finds out by its first commit.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from gagar.errors import FencedError, GagarError, UnavailableError
from gagar.stream.lanes.budget import Held
from gagar.stream.lanes.committing import RefusedUnitError, transact
from gagar.stream.lanes.context import StageContext
from gagar.stream.lanes.frontier import Frontier
from gagar.stream.lanes.reading import LaneReader
from gagar.stream.lanes.units import Spot, Unit, UnitQueue
from gagar.stream.lanes.work import LostPlaceError, Work
from gagar.stream.readers.watched import WatchedReader
from gagar.stream.together import bounded, gathered, together, until
from gagar.stream.transport import Committed, Membership, Partition, Producer

log = logging.getLogger(__name__)

IDLE_S = 1.0
"""A watermark that moved without a unit (transaction markers) is committed after so long, so that no lag shows."""


class Lane:
    """See the module. `run` serves until `abandon`; `stop_reading` and `drain` end its work in good order before that."""

    def __init__(self, number: int, membership: Membership, context: StageContext, make_work: Callable[["Lane"], Work]) -> None:
        self.number = number
        self.queue = UnitQueue()
        self.queue.on_settled = context.budget.changed.set
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._name = f"{context.stage.name}.{number}"
        self._membership = membership
        self._context = context
        self._limits = context.limits
        self._partitions = [Partition(topic.name, number) for topic in context.stage.divided]
        self._frontiers: dict[Partition, Frontier] = {}
        self._committed: dict[Partition, int] = {}
        self._num_committed = 0
        self._producer: Producer | None = None
        self._reader: LaneReader | None = None
        self._is_reading = True
        self._intake = asyncio.Event()
        """Not set while the group is divided anew."""
        self._intake.set()
        self._is_leaving = False
        self.left = asyncio.Event()
        """Set once an abandoned lane has made its last commit, or will make none."""
        self._refused: dict[bytes, str] = {}
        """Keys of units that the log has refused, and why, where work is done again: the next unit of the key is dead."""
        self._work = make_work(self)

    async def run(self) -> None:
        """Takes over and serves, again after every failure of the log, until it is abandoned; raises what is wrong with the
        stage itself."""
        num_failures = num_committed = 0
        try:
            while not self.left.is_set():
                num_committed = self._num_committed
                try:
                    await until(self.left, self._serve())
                except LostPlaceError:
                    raise
                except (UnavailableError, FencedError) as error:
                    num_failures = 1 if self._num_committed > num_committed else num_failures + 1
                    log.warning("lane interrupted lane=%s failures=%d error=%s", self._name, num_failures, error)
                    if self._is_leaving:
                        break
                await bounded(self.left.wait(), self._limits.backoff(max(num_failures, 1)))
        finally:
            self.left.set()
            self._discard()
            await gathered((self._close(), self._work.wait_abandoned()))

    async def _serve(self) -> None:
        await together(self._take_over())
        assert self._reader is not None
        await together(self._work.run(self._reader), self._commit(), self._watch())

    @property
    def held(self) -> Held:
        """By inputs in work and by finished units."""
        return Held(self._work.num_bytes + self.queue.input_bytes, self.queue.output_bytes)

    @property
    def reader(self) -> LaneReader | None:
        """None while the lane takes over."""
        return self._reader

    @property
    def num_in_work(self) -> int:
        """Records that are delivered and not finished."""
        return sum(frontier.num_pending for frontier in self._frontiers.values())

    def finish(self, unit: Unit) -> None:
        refusal = self._refused.get(unit.source.key) if unit.kind == "done" else None
        unit = unit if refusal is None else self._dead(unit, refusal)
        self._context.budget.note(Held(2 * unit.input_bytes, unit.num_bytes))
        self.queue.put(unit)

    def fail(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)

    def is_finished(self, spot: Spot) -> bool:
        frontier = self._frontiers.get(spot.at)
        return spot in self.queue or (frontier is not None and frontier.is_finished(spot.offset))

    def lagging(self) -> Iterable[Partition]:
        return self._reader.lagging() if self._reader is not None else self._partitions

    @property
    def is_open(self) -> bool:
        return self._is_reading and self._intake.is_set()

    async def opened(self) -> bool:
        await self._intake.wait()
        return self._is_reading

    def pause(self) -> None:
        """Nothing new begins until `resume`."""
        self._intake.clear()

    def resume(self) -> None:
        """The partition is still this process's."""
        self._intake.set()

    def stop_reading(self) -> None:
        """Nothing new begins any more."""
        self._is_reading = False
        self._intake.set()

    async def drain(self) -> None:
        """Until the work that ends by itself has ended and is committed."""
        await self._work.drain()
        await self.queue.wait_empty()

    async def flush(self) -> None:
        """Until what is finished now is committed."""
        await self.queue.wait_present()

    def abandon(self) -> None:
        """Throws all unfinished work away and lets `run` end.

        Nothing begins any more: the room that this makes would be filled before the lane has ended. What is finished gets a
        last commit within `last_commit_s`: it comes before the fence of the partition's next owner, or is fenced.
        """
        self.stop_reading()
        self._is_leaving = True
        self._count_abandoned(self._work.abandon(lambda spot: True))
        if len(self.queue):
            asyncio.get_running_loop().call_later(self._limits.last_commit_s, self.left.set)
        else:
            self.left.set()

    def _discard(self) -> None:
        """Finished units that no commit took are made again by the next owner."""
        num_spots = len(list(self.queue.spots()))
        self._context.counters.wasted += self.queue.drop(lambda unit: True)
        self._count_abandoned(num_spots)

    def _count_abandoned(self, num_abandoned: int) -> None:
        self._context.counters.abandoned += num_abandoned
        if num_abandoned:
            log.warning("work abandoned lane=%s deliveries=%d", self._name, num_abandoned)

    async def committed(self) -> dict[Partition, Committed]:
        """The group's offsets of the lane's partitions, asked for now."""
        return await self._membership.committed(self._partitions)

    async def _take_over(self) -> None:
        await self._close()
        while True:
            if self.number in await self._membership.confirm():
                break
            await asyncio.sleep(self._limits.backoff(1))
        transport = self._context.transport
        self._producer = await transport.start_producer(self._name, self._context.router.outputs)
        committed = await self.committed()
        positions = {at: frontier.next for at, frontier in self._frontiers.items()}
        self._frontiers = {at: Frontier.restore(start.offset, start.metadata) for at, start in committed.items()}
        self._committed = {at: start.offset for at, start in committed.items()}
        self._work.resume(self._frontiers)
        self._keep_work(positions)
        reader = WatchedReader(self._name, transport, self._partitions, self._limits.stall_s)
        self._reader = LaneReader(self._name, reader, self._context.stage.inputs, self._frontiers, self._context.counters)
        self._context.counters.takeovers += 1
        log.info("lane taken over lane=%s offsets=%s", self._name, {str(at): f.low for at, f in self._frontiers.items()})

    def _keep_work(self, positions: dict[Partition, int]) -> None:
        """Drops what turned out to be committed (all work, if it is kept nowhere); the rest counts as delivered."""
        keeps = self._work.keeps_deliveries

        def is_dropped(spot: Spot) -> bool:
            return not keeps or self._frontiers[spot.at].is_finished(spot.offset)

        self.queue.drop(lambda unit: any(is_dropped(spot) for spot in unit.inputs))
        num_abandoned = self._work.abandon(is_dropped)
        self._context.counters.abandoned += num_abandoned if keeps else 0
        if keeps:
            for spot in sorted([*self._work.held(), *self.queue.spots()]):
                self._frontiers[spot.at].deliver(spot.offset)
            for at, position in positions.items():
                self._frontiers[at].advance(position)

    async def _commit(self) -> None:
        while True:
            await self.queue.wait_filled(IDLE_S)
            if len(self.queue) and self.is_open:
                await self._work.linger()
            if await self._commit_next():
                await asyncio.sleep(self._limits.commit_gap_s)
            if self._is_leaving and not len(self.queue):
                self.left.set()

    async def _commit_next(self) -> bool:
        """Commits what is finished, if anything is; keeps none of it alive for longer."""
        units = self.queue.take(self._limits.max_units, self._limits.max_transaction_bytes)
        if not units and not self._has_moved():
            return False
        await self._transact(units)
        return True

    def _has_moved(self) -> bool:
        return any(frontier.low > self._committed.get(at, frontier.low) for at, frontier in self._frontiers.items())

    async def _transact(self, units: list[Unit]) -> None:
        assert self._producer is not None
        context, finishing = self._context, _by_partition(units)
        snapshots = {at: frontier.snapshot(finishing.get(at, ())) for at, frontier in self._frontiers.items()}
        offsets = {at: Committed(offset=offset, metadata=metadata) for at, (offset, metadata) in snapshots.items()}
        timeout_s = self._limits.last_timeout_s if self.queue.is_down_to_one else self._limits.transaction_timeout_s
        try:
            await transact(self._producer, context.router, units, context.stage.name, offsets, timeout_s)
        except RefusedUnitError as error:
            self._give_back_refused(error)
            raise UnavailableError(f"lane {self._name}: expected outputs that the log takes, got {error}") from error
        except BaseException:
            self.queue.give_back()
            raise
        for at, spots in finishing.items():
            self._frontiers[at].finish(spots)
        self._committed = {at: committed.offset for at, committed in offsets.items()}
        self._num_committed += 1
        for unit in units:
            self._refused.pop(unit.source.key, None)
        self.queue.done()
        self._count(units)

    def _give_back_refused(self, error: RefusedUnitError) -> None:
        """One unit becomes a dead letter, the others wait for the next transaction as they are."""
        unit = error.unit
        if unit.kind == "made":
            raise GagarError(f"stage {self._context.stage.name}: expected outputs that the log takes, got {error}")
        if unit.kind == "dead":
            raise GagarError(f"dead-letters: expected to take {unit.source.ref}, got {error}; raise its max.message.bytes")
        log.warning("output refused, record dead-lettered lane=%s record=%s error=%s", self._name, unit.source.ref, error)
        if not self._work.keeps_deliveries:
            self._refused[unit.source.key] = str(error)
        dead = self._dead(unit, str(error))
        self.queue.give_back(lambda other: dead if other is unit else other)

    def _dead(self, unit: Unit, error: str) -> Unit:
        return self._context.router.dead_unit(unit.source, error, inputs=unit.inputs, ends_group=len(unit.inputs) > 1)

    def _count(self, units: list[Unit]) -> None:
        counters = self._context.counters
        counters.transactions += 1
        for unit in units:
            counters.finished += len(unit.inputs)
            counters.dead_letters += unit.kind == "dead"
            counters.late += unit.kind == "late"
            self._context.dead_letter_limits.note(unit.kind == "dead")

    async def _watch(self) -> None:
        await asyncio.shield(self.failure)

    async def _close(self) -> None:
        producer, reader, self._producer, self._reader = self._producer, self._reader, None, None
        await gathered(end.close() for end in (producer, reader) if end is not None)


def _by_partition(units: Iterable[Unit]) -> dict[Partition, list[int]]:
    offsets: dict[Partition, list[int]] = {}
    for unit in units:
        for spot in unit.inputs:
            offsets.setdefault(spot.at, []).append(spot.offset)
    return offsets
