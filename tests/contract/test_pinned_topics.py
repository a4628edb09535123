"""A topic that grows, or is made anew, under a stage ends it; on one that is not as the run file says no stage starts."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gagar.errors import ConfigError, GagarError
from gagar.stream.handlers import Effect, Transform
from gagar.stream.journal import LogJournal
from gagar.stream.runtime import StageRuntime
from gagar.stream.spec import Stage
from tests.contract.counting import STAGE as SOURCE
from tests.contract.counting import Counting
from tests.contract.gathering import STAGE as REDUCER
from tests.contract.gathering import Gathering
from tests.contract.test_effects import Worker, requests, to_trajectory
from tests.contract.world import (
    DEAD_LETTERS,
    FAST,
    NUM_PARTITIONS,
    OUTCOMES,
    REQUESTS,
    TRAJECTORIES,
    VERDICTS,
    VERSIONS,
    Process,
    World,
    make_stage,
    opened,
    write,
)

LIMITS = replace(FAST, pin_check_s=0.1)
EFFECT = make_stage("effect")
TRANSFORM = make_stage("transform")
LEARNER = make_stage("learner", outputs=(OUTCOMES, VERSIONS), holds_groups=True, name="reader")
MAKE: dict[str, tuple[Stage, Callable[[], Any]]] = {
    "source": (SOURCE, lambda: Counting(1000, ahead=1)),
    "transform": (TRANSFORM, lambda: Transform(to_trajectory)),
    "effect": (EFFECT, Worker),
    "reducer": (REDUCER, Gathering),
}
GROWN = (
    r"stage {}: expected topic {} to keep its 4 partitions, got 8: records of one group would lie in two of them and "
    r"never meet; start anew under another run\.name"
)
MADE_ANEW = (
    r"stage {}: expected topic {} to be (the one with the id \S+, got \S+: it was deleted and made anew, and what it held is "
    r"missing|there, got none: it was deleted); start anew under another run\.name"
)
"""A look between the two finds none."""


@pytest.mark.parametrize("kind", MAKE)
async def test_a_topic_that_grows_under_a_stage_ends_it(world: World, kind: str) -> None:
    stage, make = MAKE[kind]
    grown = (*stage.inputs, *stage.outputs)[-1].name if kind != "transform" else DEAD_LETTERS.name
    async with Process(world, stage, make(), LIMITS) as process:
        await process.until(lambda: process.runtime.lanes)
        await world.grow(grown, 2 * NUM_PARTITIONS)
        with pytest.raises(GagarError, match=GROWN.format(stage.name, grown)):
            await process.ended()


async def test_a_topic_that_is_made_anew_under_a_stage_ends_it(world: World) -> None:
    """Whoever meets it first: the reader, whose position may lie beyond the new end, or the look at the topic."""
    await write(world, requests(8))
    async with Process(world, EFFECT, Worker(), replace(FAST, pin_check_s=2.0)) as process:
        await process.until_finished(8)
        await world.remake(REQUESTS)
        await write(world, requests(40, "u"))
        with pytest.raises(GagarError, match=r"rollout-requests.*(made anew|it was deleted)"):
            await process.ended()


async def read_on(journal: LogJournal) -> None:
    async with asyncio.timeout(20):
        while True:
            await journal.poll(0.05)


@pytest.mark.parametrize("happens", ["grown", "made anew"])
async def test_a_topic_that_grows_or_is_made_anew_under_a_learner_ends_it(world: World, happens: str) -> None:
    journal = LogJournal(LEARNER, world.transport(), DEAD_LETTERS, LIMITS)
    await journal.open()
    try:
        await journal.seek({})
        if happens == "grown":
            await world.grow(REQUESTS.name, 2 * NUM_PARTITIONS)
            told = GROWN.format("reader", REQUESTS.name)
        else:
            await world.remake(OUTCOMES)
            told = MADE_ANEW.format("reader", OUTCOMES.name)
        with pytest.raises(GagarError, match=told):
            await read_on(journal)
    finally:
        await journal.close()


async def started(world: World, stage: Stage, handler: Effect | Transform, num_partitions: int | None) -> None:
    """A start that is refused."""
    async with opened(world) as transport:
        runtime = StageRuntime(stage, handler, transport, DEAD_LETTERS, LIMITS, num_partitions)
        await asyncio.wait_for(runtime.run(asyncio.Event()), 20)


async def test_a_stage_with_one_input_does_not_start_on_a_topic_that_has_grown(world: World) -> None:
    await world.grow(REQUESTS.name, 2 * NUM_PARTITIONS)
    began = time.monotonic()
    told = (
        r"stage under-test: topic rollout-requests: expected 4 partitions, as kafka\.num_partitions says, got 8; "
        r"start anew under another run\.name$"
    )
    with pytest.raises(ConfigError, match=told):
        await started(world, EFFECT, Worker(), NUM_PARTITIONS)
    with pytest.raises(ConfigError, match=r"expected topics of equal partition counts, got .*'rollout-requests': 8"):
        await started(world, make_stage("effect", outputs=(TRAJECTORIES,)), Worker(), None)
    assert time.monotonic() - began < 10


async def test_a_run_file_with_another_number_than_all_topics_have_is_told_which_one_they_have(world: World) -> None:
    told = (
        r"topic rollout-requests: expected 6 partitions, .* got 4; set kafka.num_partitions=4 if the run was made with it, else"
    )
    with pytest.raises(ConfigError, match=told):
        await started(world, EFFECT, Worker(), 6)
    journal = LogJournal(LEARNER, world.transport(), DEAD_LETTERS, LIMITS, 6)
    with pytest.raises(ConfigError, match=told):
        await journal.open()
    await journal.close()


async def test_a_topic_that_is_not_grouped_has_one_partition(world: World) -> None:
    await world.grow(VERSIONS.name, 2)
    with pytest.raises(ConfigError, match=r"topic policy-versions: expected 1 partition, got 2; start anew"):
        await started(world, make_stage("effect", (VERDICTS,), tables=(VERSIONS,)), Worker(), None)
