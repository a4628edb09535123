"""What is fired at a run: each kind of event, and the schedule that the seed draws.

An event leaves nothing broken behind, also when it is cut short: who was stopped goes on, the broker and the sandbox are back.
Events overlap, but never two on one stage; while a stage is scaled nothing befalls the broker, so that what is seen then is
scaling's doing.
"""

import asyncio
import os
import random
import signal
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path

import msgspec

from gagar.broker.address import BrokerState, running_state
from gagar.broker.local import start_broker, stop_broker
from gagar.leash import environment
from tests.chaos.plan import STAGE_NAMES, Plan
from tests.chaos.restarts import owned_by, watched
from tests.chaos.running import Log
from tests.chaos.slots import Slot, send
from tests.chaos.tampering import Markers
from tests.contract.world import NUM_PARTITIONS

GAP_S = (3.0, 8.0)
FROZEN_S = 9.0
"""Beyond the session time-out of a group's member, so that its partitions move."""
SETTLE_S = 3.0
OWNED_PATIENCE_S = 15.0
BROKER = "broker"
EFFECTS = ("rollout-worker", "verifier", "grader")
COMPUTING = ("sampler", "gatherer", "advantage-publisher")


class Arena:
    """What the events of a run work on."""

    def __init__(self, plan: Plan, broker_directory: Path, stages: Mapping[str, Slot], log: Log) -> None:
        self.directory = Path(plan.directory)
        self.broker_directory = broker_directory
        self.stages = stages
        self.log = log
        self.markers = Markers(self.directory)
        self.chance = random.Random(f"{plan.seed}/events")

    def any_of(self, stage: str) -> Process | None:
        """A living process of a stage."""
        alive = self.stages[stage].alive
        return self.chance.choice(alive) if alive else None


async def kill(arena: Arena, stage: str) -> None:
    """SIGKILL."""
    if (process := arena.any_of(stage)) is not None:
        send(process, signal.SIGKILL)


async def terminate(arena: Arena, stage: str) -> None:
    """SIGTERM: the end must come in time."""
    if (process := arena.any_of(stage)) is not None:
        await arena.stages[stage].stop(process)


async def freeze(arena: Arena, stage: str) -> None:
    """SIGSTOP while a second process takes the place, then SIGCONT: whoever wakes has lost it and must not write."""
    slot = arena.stages[stage]
    slot.target = 2
    await slot.fill()
    if slot.is_finished:
        return
    sleeper = slot.alive[0]
    try:
        await asyncio.sleep(arena.chance.uniform(0.0, SETTLE_S))
        send(sleeper, signal.SIGSTOP)
        await asyncio.sleep(FROZEN_S)
    finally:
        slot.target = 1
        send(sleeper, signal.SIGCONT)
    await asyncio.sleep(SETTLE_S)
    spare = arena.chance.sample(slot.alive, max(0, len(slot.alive) - 1))
    await slot.shrink(spare)


async def scale(arena: Arena, stage: str) -> None:
    """From one process to three and back: handlers of partitions that the first one keeps go on."""
    slot = arena.stages[stage]
    if not slot.alive:
        return
    first = slot.alive[0]
    is_watched = await _owns_all(arena, stage, first)
    began = time.time()
    slot.target = 3
    try:
        await slot.fill()
        added = [process for process in slot.alive if process is not first]
        await asyncio.sleep(arena.chance.uniform(6.0, 9.0))
    finally:
        slot.target = 1
    await slot.shrink([process for process in added if process in slot.alive])
    await asyncio.sleep(SETTLE_S)
    if is_watched and first in slot.alive:
        pids = {process.pid for process in added}
        arena.log.watch(watched(arena.directory, stage, first.pid, pids, began, time.time()))


async def _owns_all(arena: Arena, stage: str, process: Process) -> bool:
    """Whether a process comes to own every partition, in a bounded time; sources and the learner own none."""
    deadline = time.monotonic() + (OWNED_PATIENCE_S if stage in EFFECTS else 0.0)
    while time.monotonic() < deadline:
        if len(owned_by(arena.directory, stage, process.pid)) == NUM_PARTITIONS:
            return True
        await asyncio.sleep(0.5)
    return False


async def hang(arena: Arena, stage: str) -> None:
    """One handler waits for a long time."""
    arena.markers.place("hang", stage)


async def block(arena: Arena, stage: str) -> None:
    """One handler holds the event loop: no heartbeat, and nothing else either."""
    arena.markers.place("block", stage)


async def outage(arena: Arena, stage: str) -> None:
    """The sandbox is away: nothing may fail for it."""
    arena.markers.set_outage(True)
    try:
        await asyncio.sleep(arena.chance.uniform(5.0, 10.0))
    finally:
        arena.markers.set_outage(False)


async def restart_broker(arena: Arena, stage: str) -> None:
    """The broker ends in good order and comes back."""
    await _without_broker(arena, lambda directory: stop_broker(directory))


async def kill_broker(arena: Arena, stage: str) -> None:
    """SIGKILL of the broker, and it comes back."""

    def die(directory: Path) -> None:
        state = running_state(directory)
        assert state is not None
        os.kill(state.pid, signal.SIGKILL)

    await _without_broker(arena, die)


async def _without_broker(arena: Arena, end: Callable[[Path], object]) -> None:
    directory = arena.broker_directory
    before = running_state(directory)
    assert before is not None
    try:
        await asyncio.to_thread(end, directory)
        await asyncio.sleep(arena.chance.uniform(0.0, 2.0))
    finally:
        after: BrokerState = await asyncio.to_thread(start_broker, directory, environment(directory))
    assert after.address == before.address, f"broker: expected it at {before.address} again, got {after.address}"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of event and what it can befall."""

    name: str
    fire: Callable[[Arena, str], Coroutine[None, None, None]]
    targets: tuple[str, ...]
    besides: tuple[str, ...] = ()
    """What nothing else may befall meanwhile, beside the target."""
    weight: int = 1
    """How often it comes, against the others."""


KINDS = (
    Kind(name="kill", fire=kill, targets=STAGE_NAMES, weight=4),
    Kind(name="freeze", fire=freeze, targets=STAGE_NAMES, weight=2),
    Kind(name="terminate", fire=terminate, targets=STAGE_NAMES, weight=2),
    Kind(name="scale", fire=scale, targets=EFFECTS, besides=(BROKER,)),
    Kind(name="hang", fire=hang, targets=(*EFFECTS, "learner")),
    Kind(name="block", fire=block, targets=(*EFFECTS, *COMPUTING)),
    Kind(name="outage", fire=outage, targets=("verifier",)),
    Kind(name="restart_broker", fire=restart_broker, targets=(BROKER,)),
    Kind(name="kill_broker", fire=kill_broker, targets=(BROKER,)),
)


class Schedule:
    """Which event comes next: every kind once, and the death of a learner, in the seed's order; then any. Each at the stage
    that was hit least."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        fatal = msgspec.structs.replace(KINDS[0], targets=("learner",))
        self._first = chance.sample((*KINDS, fatal), len(KINDS) + 1)
        self._hits: Counter[str] = Counter()

    def next(self, busy: Collection[str]) -> tuple[Kind, str] | None:
        """The next event and its target; none if what is due must wait for one that goes on."""
        kind = self._first[0] if self._first else self._chance.choices(KINDS, [kind.weight for kind in KINDS])[0]
        free = [target for target in kind.targets if target not in busy]
        if not free or any(name in busy for name in kind.besides):
            return None
        if self._first:
            self._first.pop(0)
        least = min(self._hits[target] for target in free)
        target = self._chance.choice([target for target in free if self._hits[target] == least])
        self._hits[target] += 1
        return kind, target


async def fire(arena: Arena) -> None:
    """Until it is cancelled."""
    schedule, running = Schedule(arena.chance), dict[asyncio.Task[None], set[str]]()
    try:
        while True:
            await asyncio.sleep(arena.chance.uniform(*GAP_S))
            for task in [task for task in running if task.done()]:
                task.result()
                del running[task]
            event = schedule.next(set().union(*running.values()))
            if event is not None:
                kind, target = event
                arena.log.note(kind.name, target)
                running[asyncio.create_task(kind.fire(arena, target))] = {target, *kind.besides}
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
