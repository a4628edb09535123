"""The history of one group: its records, decoded, and what they make of each attempt.

In: raw records of the group, in any order. Out: `GroupHistory`. Kept: all of them but token arrays. What nobody can read is
kept as a fault, not passed over.
"""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from gagar.errors import BadRecordError
from gagar.groups.lineage import Lineage
from gagar.history.collecting import ORDER, Collector
from gagar.records import (
    DeadLetter,
    Grade,
    GradedGroup,
    Group,
    GroupAdvantages,
    LogRef,
    MemberAdvantage,
    Outcome,
    PolicyVersion,
    RolloutRequest,
    Trajectory,
    Verdict,
)
from gagar.stream.handlers import Delivery
from gagar.stream.readers.scans import scan_transport
from gagar.stream.retries import mark_in
from gagar.stream.routing import to_delivery
from gagar.stream.spec import Topic, topic_of
from gagar.stream.transport import RawRecord, Transport

RecordT = TypeVar("RecordT", bound=msgspec.Struct)


class AttemptHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What the log says of one attempt; of records that are there more than once, the first."""

    sample_index: int
    request: Delivery[RolloutRequest] | None
    trajectory: Delivery[Trajectory] | None
    verdict: Delivery[Verdict] | None
    grade: Grade | None
    advantage: MemberAdvantage | None

    @property
    def judged(self) -> Verdict | None:
        """Its verdict."""
        return self.verdict.record if self.verdict is not None else None


class GroupHistory:
    """All that the log holds of one group."""

    def __init__(self, group_id: str, topics: Sequence[Topic]) -> None:
        self.group_id = group_id
        self.missing: list[LogRef] = []
        """Records that others refer to and that the log no longer holds."""
        self.unreadable: list[tuple[LogRef, str]] = []
        """Records that cannot be decoded, and why."""
        self.retries: list[LogRef] = []
        """Copies of dead letters that were retried."""
        self.versions: list[Delivery[PolicyVersion]] = []
        """Those that sampled a token of the group, and the one that was trained on it."""
        self.lineage = Lineage()
        self._topics = {topic.name: topic for topic in topics}
        self._records: dict[type, list[Delivery[Any]]] = {kind: [] for kind in ORDER}

    def add(self, raw: RawRecord) -> Delivery[Any] | None:
        """Takes a record in; none if it is another group's or cannot be read."""
        if raw.key != self.group_id.encode():
            return None
        topic = self._topics[raw.at.topic]
        if mark_in(raw.headers) is not None:
            self.retries.append(raw.ref)
            return None
        try:
            delivery = to_delivery(raw, topic)
        except BadRecordError as error:
            if raw.value is not None:
                self.unreadable.append((raw.ref, str(error)))
            return None
        self._records[topic.record].append(delivery)
        return delivery

    def of(self, record_type: type[RecordT]) -> list[Delivery[RecordT]]:
        """Its records on one topic, in log order."""
        return sorted(self._records[record_type], key=lambda delivery: delivery.ref)

    def newest(self, record_type: type[RecordT]) -> RecordT | None:
        """The last of them."""
        found = self.of(record_type)
        return found[-1].record if found else None

    @property
    def num_records(self) -> int:
        return sum(map(len, self._records.values())) + len(self.unreadable) + len(self.retries)

    @property
    def outcomes(self) -> list[Delivery[Outcome]]:
        """The outcomes that count: of the surviving lineage."""
        return [delivery for delivery in self.of(Outcome) if self.survives(delivery.record)]

    @property
    def superseded(self) -> list[Delivery[Outcome]]:
        """The others."""
        return [delivery for delivery in self.of(Outcome) if not self.survives(delivery.record)]

    @property
    def deliveries(self) -> list[Delivery[Any]]:
        """All records that can be read, in the order of `ORDER`."""
        return [delivery for kind in ORDER for delivery in self.of(kind)]

    def survives(self, outcome: Outcome) -> bool:
        """Whether an outcome counts; a learner that has gone back has superseded what it had done since."""
        return not outcome.run_id or self.lineage.survives(outcome.run_id, outcome.step)

    @property
    def reached(self) -> str:
        """How it ended, or else the last topic that it has come to. Example: `trained at step 12`."""
        if self.outcomes:
            return ended_as(self.outcomes[-1].record)
        kinds = (GroupAdvantages, GradedGroup, Group, Verdict, Trajectory, RolloutRequest)
        topic = next((self._records[kind][0].ref.topic for kind in kinds if self._records[kind]), "nothing")
        return f"in flight, on {topic}"

    @property
    def attempts(self) -> list[AttemptHistory]:
        """By sample index."""
        graded, advantages = self.newest(GradedGroup), self.newest(GroupAdvantages)
        grades = {grade.sample_index: grade for grade in (graded.grades if graded else [])}
        members = {member.sample_index: member for member in (advantages.members if advantages else [])}
        requests, trajectories, verdicts = (_first_by_sample(self.of(kind)) for kind in (RolloutRequest, Trajectory, Verdict))
        for group in self.of(Group):  # a verdict that retention has taken lives on in its group
            for verdict in group.record.members:
                verdicts.setdefault(verdict.sample_index, Delivery(ref=group.ref, key=group.key, record=verdict, at=group.at))
        return [
            AttemptHistory(
                sample_index=index,
                request=requests.get(index),
                trajectory=trajectories.get(index),
                verdict=verdicts.get(index),
                grade=grades.get(index),
                advantage=members.get(index),
            )
            for index in sorted({*requests, *trajectories, *verdicts, *grades, *members})
        ]

    @property
    def letters(self) -> list[Delivery[DeadLetter]]:
        """Records of the group that a stage has rejected."""
        return [letter for letter in self.of(DeadLetter) if letter.record.retried_as is None]

    def retried_as(self, letter: LogRef) -> LogRef | None:
        """Where the copy of a dead letter lies, if it was retried."""
        marks = {mark.record.source: mark.record.retried_as for mark in self.of(DeadLetter) if mark.record.retried_as}
        return marks.get(letter)

    def observe(self, delivery: Delivery[PolicyVersion]) -> None:
        """Takes a policy version in, in log order, after the records; once more does no harm."""
        self.lineage.observe(delivery.record)
        version = delivery.record
        sampled = [verdict.record.attempt for verdict in self.of(Verdict)]
        is_sampler = any(facts.policy_version_min <= version.version <= facts.policy_version_max for facts in sampled)
        trained = {(outcome.record.run_id, outcome.record.step) for outcome in self.of(Outcome)}
        is_known = any(known.ref == delivery.ref for known in self.versions)
        if not is_known and (is_sampler or (version.run_id, version.step) in trained):
            self.versions.append(delivery)


def ended_as(outcome: Outcome) -> str:
    """An outcome in words. Example: `dropped: all_failed`."""
    if outcome.kind == "dropped":
        return f"dropped: {outcome.reason}" + (f" at step {outcome.step}" if outcome.run_id else "")
    return f"{outcome.kind} at step {outcome.step}"


def _first_by_sample(deliveries: Sequence[Delivery[Any]]) -> dict[int, Delivery[Any]]:
    return {delivery.record.sample_index: delivery for delivery in reversed(deliveries)}


async def read_group(transport: Transport, topics: Sequence[Topic], group_id: str) -> GroupHistory:
    """The history of a group as it is now, empty if there is no such group; token arrays are left in the log. Raises
    UnavailableError."""
    history = GroupHistory(group_id, topics)
    collector = Collector(transport, topics, [group_id], with_tokens=False)
    async with aclosing(collector.records()) as raws:
        async for raw in raws:
            history.add(raw)
    history.missing = collector.missing
    if history.num_records:
        async with aclosing(scan_transport(transport, [topic_of(topics, PolicyVersion)])) as deliveries:
            async for delivery in deliveries:
                history.observe(delivery)
    return history
