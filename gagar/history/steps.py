"""The history of a step, of a policy version, of a task: which groups made it, and how they ended.

In: a transport, the topics of a run, a step, a version or a task id. Out: `StepHistory`, `VersionHistory`, `TaskHistory`. Read
are small topics only. Kept: the outcomes in question, and of a task's groups a line each.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from gagar.errors import BadRecordError
from gagar.groups.lineage import Lineage
from gagar.groups.rounds import Round
from gagar.records import LineageEntry, Outcome, PolicyVersion, RolloutRequest
from gagar.stream.handlers import Delivery
from gagar.stream.readers.scans import scan_raw, scan_transport
from gagar.stream.readers.watched import partitions_of
from gagar.stream.routing import to_delivery
from gagar.stream.spec import Topic, topic_of
from gagar.stream.transport import Transport


class KnownVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A policy version on the log."""

    delivery: Delivery[PolicyVersion]
    survives: bool
    """Whether its step counts: it does not if the learner has gone back behind it."""
    has_weights: bool
    """No record says that its weights were removed."""

    @property
    def record(self) -> PolicyVersion:
        return self.delivery.record


class StepHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer step."""

    step: int
    versions: list[KnownVersion]
    """What it has published; more than one after a restart of the learner."""
    outcomes: list[Delivery[Outcome]]
    """Of the groups that it was trained on, or that the learner dropped meanwhile, in the surviving lineage."""
    evaluation: Round | None
    """The round that measured the policy after the step."""

    @property
    def has_ended(self) -> bool:
        """A surviving version was published."""
        return any(version.survives for version in self.versions)


class VersionHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One policy version."""

    version: KnownVersion
    outcomes: list[Delivery[Outcome]]
    """Of the groups that its step was trained on."""
    num_sampled: int
    """Groups that have ended and of which it may have sampled tokens."""
    lineage: list[LineageEntry]


class TaskGroup(msgspec.Struct, kw_only=True):
    """One group of a task."""

    group_id: str
    step: int
    """Of the newest policy version that the sampler knew."""
    requested_at: float
    """Broker time."""
    outcome: Outcome | None = None
    """The one that counts; none while the group is in flight."""


class TaskHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Every group of one task."""

    task_id: str
    groups: list[TaskGroup]
    """In the order in which they were requested."""


class VersionTable:
    """Policy versions in log order, with the tombstones of those whose weights were removed."""

    def __init__(self) -> None:
        self.lineage = Lineage()
        self._deliveries: dict[str, Delivery[PolicyVersion]] = {}
        self._removed: set[str] = set()

    @classmethod
    async def read(cls, transport: Transport, topics: Sequence[Topic]) -> "VersionTable":
        """As it is now. A version whose record was compacted away, after its weights were removed, is not there any more."""
        table, topic = cls(), topic_of(topics, PolicyVersion)
        partitions = await partitions_of(transport, [topic])
        async with aclosing(scan_raw(transport, partitions)) as raws:
            async for raw in raws:
                if raw.value is None:
                    table._removed.add(raw.key.decode("utf-8", "replace"))
                else:
                    with suppress(BadRecordError):
                        table._observe(to_delivery(raw, topic))
        return table

    def _observe(self, delivery: Delivery[PolicyVersion]) -> None:
        self.lineage.observe(delivery.record)
        self._deliveries[delivery.key] = delivery

    @property
    def versions(self) -> list[KnownVersion]:
        return [
            KnownVersion(
                delivery=delivery,
                survives=self.lineage.survives(delivery.record.run_id, delivery.record.step),
                has_weights=key not in self._removed,
            )
            for key, delivery in self._deliveries.items()
        ]

    def find(self, name: str) -> KnownVersion | None:
        """By `<run id>/<version>`, or by the number alone: then the surviving one, the newest if it was published twice."""
        run_id, _, number = name.rpartition("/")
        found = [v for v in self.versions if str(v.record.version) == number and run_id in ("", v.record.run_id)]
        return max(found, key=lambda v: (v.survives, v.delivery.ref.offset), default=None)


async def read_step(transport: Transport, topics: Sequence[Topic], step: int) -> StepHistory:
    """Raises UnavailableError."""
    table = await VersionTable.read(transport, topics)
    outcomes: dict[str, Delivery[Outcome]] = {}
    evaluation: Round | None = None
    async with aclosing(_outcomes(transport, topics)) as deliveries:
        async for delivery in deliveries:
            outcome = delivery.record
            if outcome.step == step and outcome.kind == "evaluated":
                evaluation = evaluation or Round(step=step)
                evaluation.add(outcome)
            elif outcome.step == step and outcome.run_id and table.lineage.survives(outcome.run_id, step):
                outcomes[outcome.group_id] = delivery
    versions = [version for version in table.versions if version.record.step == step]
    return StepHistory(step=step, versions=versions, outcomes=list(outcomes.values()), evaluation=evaluation)


async def read_version(transport: Transport, topics: Sequence[Topic], name: str) -> VersionHistory | None:
    """None if there is no such version. Raises UnavailableError."""
    version = (await VersionTable.read(transport, topics)).find(name)
    if version is None:
        return None
    record, num_sampled = version.record, 0
    outcomes: dict[str, Delivery[Outcome]] = {}
    async with aclosing(_outcomes(transport, topics)) as deliveries:
        async for delivery in deliveries:
            outcome = delivery.record
            num_sampled += outcome.policy_version_min <= record.version <= outcome.policy_version_max
            if outcome.kind == "trained" and (outcome.run_id, outcome.step) == (record.run_id, record.step):
                outcomes[outcome.group_id] = delivery
    return VersionHistory(version=version, outcomes=list(outcomes.values()), num_sampled=num_sampled, lineage=record.lineage)


async def read_task(transport: Transport, topics: Sequence[Topic], task_id: str) -> TaskHistory:
    """Raises UnavailableError."""
    groups: dict[str, TaskGroup] = {}
    async with aclosing(scan_transport(transport, [topic_of(topics, RolloutRequest)])) as requests:
        async for delivery in requests:
            request = delivery.record
            if request.task_id == task_id and request.group_id not in groups:
                group = TaskGroup(group_id=request.group_id, step=request.step, requested_at=delivery.at)
                groups[request.group_id] = group
    lineage = (await VersionTable.read(transport, topics)).lineage
    async with aclosing(_outcomes(transport, topics)) as deliveries:
        async for delivery in deliveries:
            outcome = delivery.record
            known = groups.get(outcome.group_id)
            if known is not None and (not outcome.run_id or lineage.survives(outcome.run_id, outcome.step)):
                known.outcome = outcome
    return TaskHistory(task_id=task_id, groups=sorted(groups.values(), key=lambda group: group.requested_at))


def _outcomes(transport: Transport, topics: Sequence[Topic]) -> AsyncGenerator[Delivery[Any], None]:
    return scan_transport(transport, [topic_of(topics, Outcome)])
