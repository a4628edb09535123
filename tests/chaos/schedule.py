"""When what is fired at a run: every kind of event first, then any, as the seed draws them; what met nobody comes again.

Events overlap, but never two on one stage; while a stage is scaled nothing befalls the broker, so that what is seen then is
scaling's doing. The stream goes on, within bounds, until every kind has happened.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine

import msgspec

from tests.chaos.cluster_events import lose_quorum, move_leaders
from tests.chaos.events import (
    EFFECTS,
    Arena,
    block,
    freeze,
    freeze_before_broker,
    hang,
    kill,
    kill_before_broker,
    kill_broker,
    outage,
    restart_broker,
    scale,
    terminate,
)
from tests.chaos.plan import STAGE_NAMES

BROKER = "broker"
COMPUTING = ("sampler", "gatherer", "advantage-publisher")
TAKEN_OVER = (*EFFECTS, "gatherer")
"""Stages whose lanes have the most to take over."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of event and what it can befall."""

    name: str
    fire: Callable[[Arena, str], Coroutine[None, None, bool]]
    """Whether it happened."""
    targets: tuple[str, ...]
    besides: tuple[str, ...] = ()
    """What nothing else may befall meanwhile, besides the target."""
    weight: int = 1
    """How often it comes, against the others."""


KINDS = (
    Kind(name="kill", fire=kill, targets=STAGE_NAMES, weight=4),
    Kind(name="freeze", fire=freeze, targets=STAGE_NAMES, weight=2),
    Kind(name="terminate", fire=terminate, targets=STAGE_NAMES, weight=2),
    Kind(name="kill_before_broker", fire=kill_before_broker, targets=TAKEN_OVER, besides=(BROKER,), weight=2),
    Kind(name="freeze_before_broker", fire=freeze_before_broker, targets=TAKEN_OVER, besides=(BROKER,)),
    Kind(name="scale", fire=scale, targets=EFFECTS, besides=(BROKER,)),
    Kind(name="hang", fire=hang, targets=(*EFFECTS, "learner")),
    Kind(name="block", fire=block, targets=(*EFFECTS, *COMPUTING)),
    Kind(name="outage", fire=outage, targets=("verifier",)),
    Kind(name="restart_broker", fire=restart_broker, targets=(BROKER,)),
    Kind(name="kill_broker", fire=kill_broker, targets=(BROKER,)),
)
CLUSTER_KINDS = (
    Kind(name="move_leaders", fire=move_leaders, targets=(BROKER,)),
    Kind(name="lose_quorum", fire=lose_quorum, targets=(BROKER,)),
)
"""What can befall three brokers, besides."""


def kinds_of(num_brokers: int) -> tuple[Kind, ...]:
    """All kinds of events of a run."""
    return KINDS if num_brokers == 1 else (*KINDS, *CLUSTER_KINDS)


class Schedule:
    """Which event comes next: every kind, and the death of a learner, in the seed's order and until it has happened; then any.
    Each at the stage that was hit least."""

    def __init__(self, chance: random.Random, kinds: tuple[Kind, ...] = KINDS) -> None:
        self._chance = chance
        self._kinds = kinds
        fatal = msgspec.structs.replace(KINDS[0], targets=("learner",))
        self._due = chance.sample((*kinds, fatal), len(kinds) + 1)
        self._missing = set(self._due)
        self._hits: Counter[str] = Counter()

    @property
    def is_complete(self) -> bool:
        """Whether every kind has happened."""
        return not self._missing

    def next(self, busy: Collection[str]) -> tuple[Kind, str] | None:
        """The next event and its target; none if what is due must wait for one that goes on."""
        candidates = self._due or self._chance.choices(self._kinds, [kind.weight for kind in self._kinds])
        kind = next((kind for kind in candidates if _fits(kind, busy)), None)
        if kind is None:
            return None
        if kind in self._due:
            self._due.remove(kind)
        free = [target for target in kind.targets if target not in busy]
        least = min(self._hits[target] for target in free)
        target = self._chance.choice([target for target in free if self._hits[target] == least])
        self._hits[target] += 1
        return kind, target

    def told(self, kind: Kind, *, happened: bool) -> None:
        """An event is over; one that has never happened is due again."""
        if happened:
            self._missing.discard(kind)
        elif kind in self._missing:
            self._due.append(kind)


def _fits(kind: Kind, busy: Collection[str]) -> bool:
    return not set(kind.targets) <= set(busy) and not any(name in busy for name in kind.besides)


async def fire(arena: Arena) -> None:
    """Until it is cancelled."""
    schedule = Schedule(arena.chance, kinds_of(arena.plan.num_brokers))
    running: dict[asyncio.Task[None], set[str]] = {}
    arena.markers.hold()
    try:
        while True:
            await asyncio.sleep(arena.chance.uniform(*arena.plan.pace.event_gap_s))
            for task in [task for task in running if task.done()]:
                task.result()
                del running[task]
            event = schedule.next(set().union(*running.values()))
            if event is not None:
                kind, target = event
                running[asyncio.create_task(fire_one(arena, schedule, kind, target))] = {target, *kind.besides}
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def fire_one(arena: Arena, schedule: Schedule, kind: Kind, target: str) -> None:
    """One event to its end; the last that was missing lets the sampler go on to its own."""
    arena.log.fired(kind.name, target)
    happened = await kind.fire(arena, target)
    arena.log.told(kind.name, target, happened=happened)
    schedule.told(kind, happened=happened)
    if schedule.is_complete:
        arena.markers.release()
