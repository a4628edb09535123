"""A stage whose broker goes says that it waits, and is healthy: a new start would mend nothing."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gagar.health.judging import Health, judged
from gagar.health.vitals import HealthFile, Vitals
from gagar.stream.handlers import Delivery, Effect, Output
from tests.broker.own_broker import own_broker
from tests.contract.world import KafkaWorld, Process, make_stage

pytestmark = pytest.mark.broker

GONE_S = 30.0
"""A member's session ends after 6 s, and a log is waited for after 10 s of silence."""


class Idle(Effect):
    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        return []


def health_of(process: Process) -> Health:
    vitals: Vitals = process.runtime.vitals()
    at = time.monotonic()
    return judged(HealthFile(run="t", stage="s", pid=1, identity="x", started_at=at, written_at=at, vitals=vitals), at)


async def test_a_stage_whose_broker_is_gone_waits_for_it_and_is_healthy(tmp_path: Path) -> None:
    with own_broker(tmp_path / "broker", {}) as address:
        world = KafkaWorld(address)
        world.create_topics()
        process = Process(world, make_stage("effect"), Idle())
        await process.__aenter__()
        await process.until(lambda: health_of(process).state == "fine")
    try:
        await process.until(lambda: health_of(process).state == "waiting", GONE_S)
        assert health_of(process).is_healthy
    finally:
        await process.__aexit__(None, None, None)
