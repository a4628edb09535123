"""What is fired at a run. Each event tells whether it really happened: somebody was there and met it.

An event leaves nothing broken behind, also when it is cut short: who was stopped goes on, the broker and the sandbox are back.
"""

import asyncio
import os
import random
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

from gagar.broker.address import BrokerState, running_state
from gagar.broker.local import start_broker, stop_broker
from gagar.processes.orphan_cleanup import environment
from tests.broker.cluster import node_directories, start_node
from tests.chaos.plan import Plan
from tests.chaos.restarts import owned_by, watched
from tests.chaos.running import Log
from tests.chaos.slots import Slot, send
from tests.chaos.tampering import Marker, Markers
from tests.contract.world import NUM_PARTITIONS

FROZEN_S = 9.0
"""Beyond the session time-out of a group's member, so that its partitions move."""
SETTLE_S = 3.0
OWNED_TIMEOUT_S = 30.0
"""For a process to start and to be given partitions, on a machine that is busy."""
MARKER_TIMEOUT_S = 20.0
POLL_S = 0.5
TAKE_OVER_S = (0.5, 3.0)
"""From a loss of partitions to the broker's end, so that whoever takes them over meets a broker that is just starting."""
EFFECTS = ("rollout-worker", "verifier", "grader")


class Arena:
    """What the events of a run work on."""

    def __init__(self, plan: Plan, broker_directory: Path, stages: Mapping[str, Slot], log: Log) -> None:
        self.plan = plan
        self.directory = Path(plan.directory)
        self.environment = environment(broker_directory)
        """Of a broker's process."""
        self.brokers = (broker_directory,) if plan.num_brokers == 1 else node_directories(broker_directory)
        self.stages = stages
        self.log = log
        self.markers = Markers(self.directory)
        self.chance = random.Random(f"{plan.seed}/events")

    def any_of(self, stage: str) -> Process | None:
        """A living process of a stage."""
        alive = self.stages[stage].alive
        return self.chance.choice(alive) if alive else None


async def kill(arena: Arena, stage: str) -> bool:
    """SIGKILL, and that was what the process died of."""
    process = arena.any_of(stage)
    return process is not None and send(process, signal.SIGKILL) and await process.wait() == -signal.SIGKILL


async def terminate(arena: Arena, stage: str) -> bool:
    """SIGTERM: the end must come in time."""
    process = arena.any_of(stage)
    return process is not None and await arena.stages[stage].stop(process)


async def freeze(arena: Arena, stage: str) -> bool:
    """SIGSTOP while a second process takes the place, then SIGCONT: whoever wakes has lost it and must not write."""

    async def nothing(arena: Arena) -> bool:
        return True

    return await _freeze(arena, stage, nothing)


async def kill_before_broker(arena: Arena, stage: str) -> bool:
    """SIGKILL, and the broker goes when the partitions are about to be taken over."""
    return await kill(arena, stage) and await _broker_goes(arena)


async def freeze_before_broker(arena: Arena, stage: str) -> bool:
    """The same with SIGSTOP."""
    return await _freeze(arena, stage, _broker_goes)


async def _freeze(arena: Arena, stage: str, meanwhile: Callable[[Arena], Coroutine[None, None, bool]]) -> bool:
    slot = arena.stages[stage]
    slot.target = 2
    await slot.fill()
    if slot.is_finished:
        return False
    sleeper = slot.alive[0]
    try:
        await asyncio.sleep(arena.chance.uniform(0.0, SETTLE_S))
        happened = send(sleeper, signal.SIGSTOP) and await meanwhile(arena)
        await asyncio.sleep(FROZEN_S)
    finally:
        slot.target = 1
        is_awake = send(sleeper, signal.SIGCONT)
    await asyncio.sleep(SETTLE_S)
    spare = arena.chance.sample(slot.alive, max(0, len(slot.alive) - 1))
    await slot.shrink(spare)
    return happened and is_awake


async def scale(arena: Arena, stage: str) -> bool:
    """From one process to three and back: handlers of partitions that the first one keeps go on. Happened, if some were in
    work then."""
    slot = arena.stages[stage]
    if not slot.alive:
        return False
    first = slot.alive[0]
    is_watched = await _come_to_own(arena, stage, [first], NUM_PARTITIONS)
    began = time.time()
    slot.target = 3
    with arena.markers.lingering(stage):
        try:
            await slot.fill()
            added = [process for process in slot.alive if process is not first]
            await _come_to_own(arena, stage, added, 1)
            await asyncio.sleep(arena.chance.uniform(4.0, 7.0))
        finally:
            slot.target = 1
        await slot.shrink([process for process in added if process in slot.alive])
    await asyncio.sleep(SETTLE_S)
    if not is_watched or first not in slot.alive:
        return False
    found = watched(arena.directory, stage, first.pid, {process.pid for process in added}, began, time.time())
    arena.log.watch(found)
    return found.num_kept > 0


async def _come_to_own(arena: Arena, stage: str, processes: Sequence[Process], num_partitions: int) -> bool:
    """Whether each of the processes comes to own at least so many partitions, in a bounded time."""
    deadline = time.monotonic() + OWNED_TIMEOUT_S
    while time.monotonic() < deadline:
        if all(len(owned_by(arena.directory, stage, process.pid)) >= num_partitions for process in processes):
            return True
        await asyncio.sleep(POLL_S)
    return False


async def hang(arena: Arena, stage: str) -> bool:
    """One handler waits for a long time."""
    return await _is_taken(arena, "hang", stage)


async def block(arena: Arena, stage: str) -> bool:
    """One handler holds the event loop: no heartbeat, and nothing else either."""
    return await _is_taken(arena, "block", stage)


async def _is_taken(arena: Arena, marker: Marker, stage: str) -> bool:
    """Places a marker; whether a handler has met it in time. Else it is taken back."""
    arena.markers.place(marker, stage)
    deadline = time.monotonic() + MARKER_TIMEOUT_S
    try:
        while arena.markers.is_placed(marker, stage) and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
    finally:
        is_left = arena.markers.take(marker, stage)
    return not is_left


async def outage(arena: Arena, stage: str) -> bool:
    """The sandbox is away: nothing may fail for it."""
    with arena.markers.outage():
        await asyncio.sleep(arena.chance.uniform(5.0, 10.0))
    return arena.markers.was_outage_met


async def restart_broker(arena: Arena, stage: str) -> bool:
    """The broker, or one of them, ends in good order and comes back."""
    return await _without_broker(arena, lambda directory: stop_broker(directory))


async def kill_broker(arena: Arena, stage: str) -> bool:
    """SIGKILL of the broker, or of one of them, and it comes back."""

    def die(directory: Path) -> None:
        state = running_state(directory)
        assert state is not None
        os.kill(state.pid, signal.SIGKILL)

    return await _without_broker(arena, die)


async def _broker_goes(arena: Arena) -> bool:
    await asyncio.sleep(arena.chance.uniform(*TAKE_OVER_S))
    return await arena.chance.choice((restart_broker, kill_broker))(arena, "")


async def _without_broker(arena: Arena, end: Callable[[Path], object]) -> bool:
    directory = arena.chance.choice(arena.brokers)
    start = start_broker if arena.plan.num_brokers == 1 else start_node
    before = running_state(directory)
    assert before is not None
    try:
        await asyncio.to_thread(end, directory)
        await asyncio.sleep(arena.chance.uniform(0.0, 2.0))
    finally:
        after: BrokerState = await asyncio.to_thread(start, directory, arena.environment)
    assert after.address == before.address, f"broker: expected it at {before.address} again, got {after.address}"
    return after.pid != before.pid
