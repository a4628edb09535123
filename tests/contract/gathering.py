"""A reducer that gathers groups over both inputs, and work for it. Light to import: processes that tests start have it too."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gagar.records import LogRef, Outcome, RolloutRequest, Verdict
from gagar.stream.handlers import Delivery, Reduced, Reducer
from gagar.stream.spec import Stage
from tests.builders import make_request, make_verdict
from tests.contract.world import OUTCOMES, REQUESTS, VERDICTS, World, make_stage, read, write

STAGE: Stage = make_stage("reducer", (REQUESTS, VERDICTS), outputs=(OUTCOMES,))
SIZE = 3


class State(msgspec.Struct):
    requested: set[int] = msgspec.field(default_factory=set)
    verdicts: set[int] = msgspec.field(default_factory=set)
    deadline: float | None = None


class Gathering(Reducer[State]):
    """Closes a group when it has SIZE verdicts, or at the deadline of its requests."""

    def __init__(self) -> None:
        self.times: dict[int, list[float]] = {}

    def start(self, key: str) -> State:
        return State()

    def apply(self, state: State, delivery: Delivery[Any], now: float) -> Reduced:
        self.times.setdefault(delivery.ref.partition, []).append(now)
        record = delivery.record
        if isinstance(record, RolloutRequest):
            state.requested.add(record.sample_index)
            state.deadline = delivery.at + record.deadline_s
        else:
            state.verdicts.add(record.sample_index)
        if len(state.verdicts) == SIZE and len(state.requested) == SIZE:
            return self.closed(record.group_id, state)
        return Reduced()

    def wake_at(self, state: State) -> float | None:
        return state.deadline

    def expire(self, state: State, now: float) -> Reduced:
        return self.closed("expired", state)

    def is_late(self, delivery: Delivery[Any], is_finished: Callable[[LogRef], bool]) -> bool:
        return isinstance(delivery.record, Verdict) and is_finished(delivery.record.attempt.request)

    def closed(self, group_id: str, state: State) -> Reduced:
        outcome = Outcome(
            group_id=group_id,
            task_id="",
            purpose="training",
            kind="dropped",
            reason="all_passed",
            num_valid=len(state.verdicts),
        )
        return Reduced(outputs=[outcome], is_closed=True)


async def request_groups(world: World, group_ids: Sequence[str], deadline_s: float = 600.0) -> dict[tuple[str, int], LogRef]:
    """Asks for SIZE attempts of each group; the answer is where the requests lie."""
    await write(
        world, [make_request(group, i, group_size=SIZE, deadline_s=deadline_s) for group in group_ids for i in range(SIZE)]
    )
    return {(d.record.group_id, d.record.sample_index): d.ref for d in await read(world, REQUESTS)}


def verdict(refs: dict[tuple[str, int], LogRef], group_id: str, index: int) -> Verdict:
    return make_verdict(group_id, index, request=refs[group_id, index])
