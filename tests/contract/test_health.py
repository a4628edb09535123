"""What a stage tells of itself while it works, on both transports."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from gagar.health.judging import judged
from gagar.health.vitals import HealthFile, Vitals
from gagar.stream.handlers import Delivery, Effect, Output
from tests.builders import make_request
from tests.contract.world import Process, World, make_stage, write

SOON_S = 10.0


class Waiting(Effect):
    """Holds its delivery until it is released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        await self.release.wait()
        return []


def state_of(process: Process) -> str:
    vitals: Vitals = process.runtime.vitals()
    at = vitals.at
    file = HealthFile(run="t", stage="s", pid=1, identity="x", started_at=at, written_at=at, vitals=vitals)
    return judged(file, at).state


async def test_a_stage_is_fine_with_and_without_work_and_tells_its_lag(world: World) -> None:
    handler = Waiting()
    async with Process(world, make_stage("effect"), handler) as process:
        await process.until(lambda: process.runtime.vitals().lag == 0)
        assert state_of(process) == "fine"
        await write(world, [make_request(f"g{i}") for i in range(5)])
        await process.until(lambda: process.runtime.vitals().num_in_work == 5)
        vitals = process.runtime.vitals()
        assert (vitals.is_member, vitals.num_partitions, vitals.num_waiting) == (True, 4, 0)
        assert vitals.lag >= 5
        assert state_of(process) == "fine"
        handler.release.set()
        await process.until(lambda: process.runtime.vitals().lag == 0)


async def test_a_lane_that_holds_work_need_not_poll_and_one_that_holds_none_must(world: World) -> None:
    handler = Waiting()
    async with Process(world, make_stage("effect"), handler) as process:
        await process.until(lambda: process.runtime.vitals().active_at is not None)
        assert time.monotonic() - process.runtime.vitals().active_at < SOON_S
        await write(world, [make_request(f"g{i}") for i in range(64)])  # some for each partition
        await process.until(lambda: process.runtime.vitals().num_in_work == 64)
        assert process.runtime.vitals().active_at is None
        handler.release.set()
        await process.until(lambda: process.runtime.vitals().active_at is not None)
