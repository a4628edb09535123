"""The life of groups over the log: sampler, gatherer, grader and advantage publisher at work together, a worker and a learner
played by this test; stages are replaced on the way; at the planned end the audit is clean."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from consumers import advantage_publisher, grader
from gagar.audit.fold import Audit
from gagar.audit.result import AuditResult
from gagar.config import TrainingTable
from gagar.grading.rules import Rules
from gagar.groups.gathering import Gather
from gagar.records import GroupAdvantages, Outcome, PatchMeasures, RolloutRequest
from gagar.stream.handlers import Delivery, Effect, Linked, Output, Transform
from gagar.stream.journal import LogJournal
from gagar.stream.memory.transport import MemoryLog
from gagar.stream.spec import Stage
from producers.sampler import Sampler
from tests.builders import CLEAN, DEAD_CODE, OUTSIDE, make_ref, make_verdict, make_version
from tests.contract.world import (
    FAST,
    NUM_PARTITIONS,
    KafkaWorld,
    MemoryWorld,
    Process,
    World,
    make_stage,
    make_trajectory,
    read,
    write,
)
from topology import stages, topics

NUM_STEPS = 6
GROUPS_PER_STEP = 3
TRAINING = TrainingTable(
    group_size=4,
    groups_per_step=GROUPS_PER_STEP,
    max_staleness=1,
    evaluation_group_size=2,
    evaluate_every=3,
    num_steps=NUM_STEPS,
    rollout_deadline_s=1.0,
    agent_timeout_s=0.5,
)
ATTEMPTER = make_stage("effect", (topics.ROLLOUT_REQUESTS,), name="attempter", outputs=(topics.TRAJECTORIES, topics.VERDICTS))
TRAINER = make_stage(
    "learner", (topics.ADVANTAGES,), name="trainer", outputs=(topics.OUTCOMES, topics.POLICY_VERSIONS), holds_groups=True
)


class Attempts(Effect):
    """Worker and verifier in one: how an attempt ends is a function of its seed; some never end."""

    async def handle(self, delivery: Delivery[RolloutRequest], /) -> Sequence[Output]:
        request = delivery.record
        choice = request.seed % 16
        if choice == 0:
            return []
        measures: PatchMeasures = (CLEAN, DEAD_CODE, OUTSIDE)[request.seed // 16 % 3]
        verdict = make_verdict(
            request.group_id,
            request.sample_index,
            "invalid" if choice == 1 else "passed" if choice < 9 else "failed",
            purpose=request.purpose,
            request=delivery.ref,
            tokens=make_ref("trajectory-tokens", 0, delivery.ref.partition),
            measures=measures,
        )
        trajectory = make_trajectory(delivery, purpose=request.purpose, attempt=verdict.attempt)
        return [Linked(first=trajectory, then=lambda ref: replace(verdict, trajectory=ref))]


async def learn(world: World) -> None:
    """A learner that makes a step of every few groups and drops what comes after the last."""
    journal = LogJournal(TRAINER, world.transport(), topics.DEAD_LETTERS, FAST)
    await journal.open()
    await journal.seek({})
    positions: dict[int, int] = {}
    num_groups = 0
    try:
        while True:
            for delivery in await journal.poll(0.1):
                positions[delivery.ref.partition] = delivery.ref.offset + 1
                await journal.commit(trained(delivery.record, num_groups), positions)
                num_groups += 1
    finally:
        await journal.close()


def trained(group: GroupAdvantages, number: int) -> list[Output]:
    """What becomes of the group that comes as number `number`, from 0."""
    step = number // GROUPS_PER_STEP + 1
    is_over = step > NUM_STEPS
    outcome = Outcome(
        group_id=group.group_id,
        task_id=group.task_id,
        purpose="training",
        kind="dropped" if is_over else "trained",
        reason="ended" if is_over else "",
        run_id="a",
        step=min(step, NUM_STEPS),
        staleness=-1 if is_over else step - 1,
        num_requested=group.num_requested,
        num_valid=group.num_valid,
        num_passed=group.num_passed,
        num_clean=group.num_clean,
    )
    if is_over or (number + 1) % GROUPS_PER_STEP:
        return [outcome]
    return [outcome, make_version(step, "a", is_last=step == NUM_STEPS)]


class WholeMemory(MemoryWorld):
    """All topics of the pipeline, in memory."""

    def __init__(self) -> None:
        self.log = MemoryLog(topics.TOPICS, NUM_PARTITIONS)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
async def whole(request: pytest.FixtureRequest) -> World:
    """An empty cluster with the pipeline's topics."""
    if request.param == "memory":
        return WholeMemory()
    kafka = KafkaWorld(request.getfixturevalue("kafka_servers"), topics.TOPICS)
    await asyncio.to_thread(kafka.create_topics)
    return kafka


def make_sampler() -> Sampler:
    return Sampler(TRAINING, 5, [f"train-{i}" for i in range(7)], ["held-0", "held-1", "held-2"])


def make_handlers() -> list[tuple[Stage, Any]]:
    """All but the sampler."""
    publish = partial(advantage_publisher.assign_advantages, config=advantage_publisher.Config())
    return [
        (ATTEMPTER, Attempts()),
        (stages.GATHERER, Gather(0.2)),
        (stages.GRADER, grader.GradeGroups(Rules().make(), 5.0)),
        (stages.ADVANTAGE_PUBLISHER, Transform(publish)),
    ]


@contextlib.asynccontextmanager
async def at_work(world: World, handlers: Sequence[tuple[Stage, Any]]) -> AsyncIterator[list[Process]]:
    """A process for each stage, and the learner."""
    learning = asyncio.create_task(learn(world))
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Process(world, stage, handler)) for stage, handler in handlers]
        learning.cancel()
        await asyncio.wait([learning])


async def audited(world: World) -> AuditResult:
    audit = Audit()
    unread = (topics.TRAJECTORY_TOKENS, topics.DEAD_LETTERS)
    for topic in reversed([topic for topic in stages.upstream_first() if topic not in unread]):
        for delivery in await read(world, topic):
            audit.apply(delivery)
    return audit.result()


async def test_every_group_ends_once_though_stages_are_replaced_on_the_way(whole: World) -> None:
    await write(whole, [make_version(0, "a")], {topic.record: topic for topic in topics.TOPICS})
    handlers = make_handlers()
    async with at_work(whole, [handlers[0], *handlers[2:]]):
        async with Process(whole, stages.SAMPLER, make_sampler()) as sampler, Process(whole, *handlers[1]) as gatherer:
            await sampler.until(lambda: sampler.runtime.counters.finished >= 12)
            await gatherer.until(lambda: gatherer.runtime.counters.finished >= 30)
        async with (
            Process(whole, stages.SAMPLER, make_sampler()) as sampler,
            Process(whole, stages.GATHERER, Gather(0.2)),
        ):
            await asyncio.wait_for(asyncio.shield(sampler.task or asyncio.sleep(0)), 90)
    report = await audited(whole)
    assert report.findings == []
    assert report.is_ended
    assert report.num_trained == NUM_STEPS * GROUPS_PER_STEP
    assert report.num_in_flight == 0
    assert (min(report.rounds), max(report.rounds)) == (0, NUM_STEPS)
    assert report.num_evaluated + sum(report.dropped.values()) + report.num_trained == report.num_requested


async def test_the_first_round_is_requested_before_training_and_the_bound_is_kept(whole: World) -> None:
    await write(whole, [make_version(0, "a")], {topic.record: topic for topic in topics.TOPICS})
    async with Process(whole, stages.SAMPLER, make_sampler()) as sampler:
        await sampler.until(lambda: sampler.runtime.counters.finished >= 9)
        await asyncio.sleep(0.2)
    group_ids = {delivery.record.group_id for delivery in await read(whole, topics.ROLLOUT_REQUESTS)}
    expected = {f"e-000000-{i:04d}" for i in range(3)} | {f"t-{i:06d}" for i in range(6)}
    assert group_ids == expected
