"""The stages' handlers: where the product has models and a sandbox there is a delay here, and what members are expected to be.

All that only computes is the product's own (sampler, gatherer, rules grader, advantages).
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from consumers.advantage_publisher import Config as AdvantageConfig
from consumers.advantage_publisher import assign_advantages
from consumers.grader import GradeGroups
from gagar.arrays import Tensor
from gagar.errors import UnavailableError
from gagar.grading.rules import RulesGrader
from gagar.groups.gathering import Gather, OpenGroup
from gagar.records import (
    AttemptFacts,
    GradedGroup,
    Group,
    GroupAdvantages,
    LogRef,
    Record,
    RolloutRequest,
    Trajectory,
    TrajectoryTokens,
    Verdict,
)
from gagar.stream.handlers import Delivery, Effect, Linked, Output, Reduced, Source, Transform
from gagar.verification.verdicts import untested
from producers.sampler import Sampler
from tests.chaos.expected_outcomes import GROUP_SIZE, NUM_EVALUATIONS, ExpectedOutcomes
from tests.chaos.plan import NEVER_STALE, Plan
from tests.chaos.poison import check_bug
from tests.chaos.tampering import BLOCK_S, HANG_S, LINGER_S, Markers, Trace

NUM_PROMPT_TOKENS = 2
GRACE_S = 1.0
NUM_HELD, HELD_EVERY_S = 40, 4.0
"""The last groups are asked for one by one while events are still to come: the stream goes on for those, but not for ever."""


class Scene:
    """What all handlers of a stage process share."""

    def __init__(self, stage: str, expected: ExpectedOutcomes, markers: Markers, trace: Trace) -> None:
        self.stage = stage
        self.expected = expected
        self.markers = markers
        self._trace = trace

    async def work(self, delivery: Delivery[Any], sample_index: int = -1) -> None:
        """What befalls an effect before it answers: it hangs, it blocks the loop, it has a bug, and it takes its time."""
        self._trace.started(delivery.ref)
        is_done = False
        try:
            if self.markers.take("hang", self.stage):
                await asyncio.sleep(HANG_S)
            self.compute(delivery.key, sample_index)
            linger_s = LINGER_S if self.markers.is_lingering(self.stage) else 0.0
            await asyncio.sleep(linger_s + self.expected.delay_s(self.stage, delivery.key, sample_index))
            is_done = True
        finally:
            self._trace.ended(delivery.ref, is_done=is_done)

    def compute(self, group_id: str, sample_index: int = -1) -> None:
        """The same for handlers that only compute."""
        if self.markers.take("block", self.stage):
            time.sleep(BLOCK_S)
        check_bug(self.expected, self.stage, group_id, sample_index)


class Worker(Effect):
    """Requests in, attempts out."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def handle(self, delivery: Delivery[RolloutRequest], /) -> Sequence[Output]:
        request = delivery.record
        await self._scene.work(delivery, request.sample_index)
        num_sampled = self._scene.expected.of(request.group_id).members[request.sample_index].num_sampled
        if not num_sampled:
            return [make_trajectory(delivery, None, 0)]
        tokens = make_tokens(request.group_id, request.sample_index, num_sampled)
        return [Linked(first=tokens, then=lambda ref: make_trajectory(delivery, ref, num_sampled))]


class Verifier(Effect):
    """Attempts in, their expected verdicts out."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def handle(self, delivery: Delivery[Trajectory], /) -> Sequence[Verdict]:
        trajectory = delivery.record
        if self._scene.markers.meets_outage:
            raise UnavailableError("sandbox: expected it to be there, got none")
        await self._scene.work(delivery, trajectory.sample_index)
        member = self._scene.expected.of(trajectory.group_id).members[trajectory.sample_index]
        digest = f"{trajectory.sample_index:064x}"
        return [replace(untested(delivery, 0), status=member.status, measures=member.measures, patch_digest=digest)]


class Gatherer(Gather):
    """The product's, with a bug where one is expected."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(GRACE_S)
        self._scene = scene

    def apply(self, state: OpenGroup, delivery: Delivery[Any], now: float) -> Reduced:
        if isinstance(delivery.record, Verdict):
            self._scene.compute(delivery.key, delivery.record.sample_index)
        return super().apply(state, delivery, now)


class Grader(GradeGroups):
    """The product's, by rule, after a delay."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(RulesGrader(3), 600.0)
        self._scene = scene

    async def handle(self, delivery: Delivery[Group]) -> Sequence[GradedGroup]:
        await self._scene.work(delivery)
        return await super().handle(delivery)


def make_publisher(scene: Scene) -> Transform:
    """The product's advantages."""

    def publish(graded: GradedGroup) -> Sequence[GroupAdvantages]:
        scene.compute(graded.group_id)
        return assign_advantages(graded, AdvantageConfig())

    return Transform(publish)


class Asking(Source):
    """The product's sampler, which asks for a given number of training groups and for one evaluation, and then is done."""

    def __init__(self, plan: Plan, scene: Scene) -> None:
        admitting = replace(plan.run.training, groups_per_step=8, max_staleness=plan.pace.max_unresolved // 8 - 1)
        train = [f"train-{number}" for number in range(64)]
        heldout = [f"heldout-{number}" for number in range(NUM_EVALUATIONS)]
        self._sampler = Sampler(admitting, plan.seed, train, heldout)
        self._plan = plan
        self._scene = scene
        self._asked_at = 0.0
        self._clock = time.time

    def restore(self, cursor: bytes) -> None:
        self._sampler.restore(cursor)

    def observe(self, record: Record, /) -> None:
        self._sampler.observe(record)

    def next_unit(self) -> tuple[Sequence[Output], bytes] | None:
        """The next groups, at the pace of the plan."""
        self._scene.compute("t-sampler")
        requests: list[Output] = []
        cursor = b""
        while len(requests) < GROUP_SIZE * self._plan.pace.groups_per_unit and (unit := self._next_group()) is not None:
            requests += unit[0]
            cursor = unit[1]
        return (requests, cursor) if requests else None

    def _next_group(self) -> tuple[Sequence[Output], bytes] | None:
        """The next group; one that is going to miss a member with a near deadline."""
        now = self._clock()
        if not self._may_ask(now):
            return None
        unit = self._sampler.next_unit()
        if unit is not None:
            self._asked_at = now
        if unit is None or not self._scene.expected.of(unit[0][0].group_id).is_lossy:
            return unit
        return [replace(request, deadline_s=self._plan.lossy_deadline_s) for request in unit[0]], unit[1]

    def _may_ask(self, now: float) -> bool:
        plan, num_asked = self._plan, self._sampler._admission.cursor.next_training
        if num_asked >= min(plan.num_groups, plan.groups_per_s * (now - plan.started_at)):
            return False
        is_held = num_asked >= plan.num_groups - NUM_HELD and self._scene.markers.is_held
        return not is_held or now >= self._asked_at + HELD_EVERY_S

    @property
    def is_done(self) -> bool:
        admission = self._sampler._admission
        is_all_asked = admission.cursor.next_training >= self._plan.num_groups
        return is_all_asked and not admission.num_unresolved and not admission.num_unresolved_evaluations


def make_trajectory(delivery: Delivery[RolloutRequest], tokens: LogRef | None, num_sampled: int) -> Trajectory:
    """Of an attempt with its tokens, or of one that the infrastructure has failed."""
    request = delivery.record
    return Trajectory(
        group_id=request.group_id,
        sample_index=request.sample_index,
        attempt=AttemptFacts(
            request=delivery.ref,
            tokens=tokens,
            status="completed" if tokens else "failed",
            num_turns=1 if tokens else 0,
            num_prompt_tokens=NUM_PROMPT_TOKENS if tokens else 0,
            num_sampled_tokens=num_sampled,
            policy_version_min=NEVER_STALE if tokens else -1,
            policy_version_max=NEVER_STALE if tokens else -1,
        ),
        task_id=request.task_id,
        purpose=request.purpose,
        infrastructure=tokens is None,
    )


def make_tokens(group_id: str, sample_index: int, num_sampled: int) -> TrajectoryTokens:
    """A prompt and sampled tokens, aligned."""
    mask = np.array([0] * NUM_PROMPT_TOKENS + [1] * num_sampled, "u1")
    return TrajectoryTokens(
        group_id=group_id,
        sample_index=sample_index,
        token_ids=Tensor.of(np.arange(len(mask), dtype="<i4")),
        loss_mask=Tensor.of(mask),
        behaviour_logprobs=Tensor.of((mask * np.float32(-0.5)).astype("<f4")),
        policy_versions=Tensor.of(np.where(mask == 1, NEVER_STALE, -1).astype("<i4")),
    )
