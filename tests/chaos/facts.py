"""What lies in the topics of a run at its end, as small facts: read topic by topic, committed records only."""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from gagar.config import KafkaTable
from gagar.errors import BadRecordError
from gagar.groups.lineage import Lineage
from gagar.records import DeadLetter, GroupAdvantages, Outcome, PolicyVersion, RolloutRequest, decode
from gagar.stream.handlers import Delivery
from gagar.stream.kafka.client import scan
from tests.chaos.expected_outcomes import End, ExpectedOutcomes, Letter
from tests.chaos.plan import Plan
from tests.chaos.poison import NO_RECORD, sample_of
from topology import topics
from topology.stages import upstream_first

UNIQUE = tuple(topic for topic in upstream_first() if topic.kept != "compacted" and topic is not topics.DEAD_LETTERS)
"""Topics on which a member, or a group, is once."""
RECORD_OF = {topic.name: topic.record for topic in topics.TOPICS}


class Facts(msgspec.Struct, kw_only=True):
    """Of one run."""

    ends: dict[str, list[End]] = {}
    """By group, its outcomes in the surviving lineage."""
    num_superseded: int = 0
    """Outcomes of steps that a restarted learner left behind."""
    num_lineages: int = 0
    """Runs of the learner."""
    doubled: list[str] = []
    """Records that are there more than once."""
    letters: Counter[Letter] = msgspec.field(default_factory=Counter)
    requests: dict[str, str] = {}
    """By group and sample, digest of what was asked: task and seed."""
    advantages: dict[str, str] = {}
    """By group, digest of its members' weights and advantages."""
    reached: dict[str, str] = {}
    """By group, the last topic that holds a record of it: where to look for one that is missing."""


async def gather(plan: Plan) -> Facts:
    """Reads all topics of a run."""
    facts, lineage, runs = Facts(), Lineage(), set()
    async for delivery in _scan(plan, topics.POLICY_VERSIONS):
        version: PolicyVersion = delivery.record
        lineage.observe(version)
        runs.add(version.run_id)
    facts.num_lineages = len(runs)
    for topic in UNIQUE:
        seen: set[str] = set()
        async for delivery in _scan(plan, topic):
            _note(facts, seen, topic.name, delivery)
    async for delivery in _scan(plan, topics.OUTCOMES):
        _note_outcome(facts, lineage, delivery.record)
    async for delivery in _scan(plan, topics.DEAD_LETTERS):
        facts.letters[letter_of(delivery.record, plan.expected)] += 1
    return facts


def _scan(plan: Plan, topic: Any) -> AsyncIterator[Delivery[Any]]:
    return scan(KafkaTable(bootstrap_servers=plan.servers), plan.name, [topic])


def _note(facts: Facts, seen: set[str], topic: str, delivery: Delivery[Any]) -> None:
    record = delivery.record
    what = f"{record.group_id}/{sample_of(record)}"
    if what in seen:
        facts.doubled.append(f"{topic} {what}")
    seen.add(what)
    facts.reached[record.group_id] = topic
    if isinstance(record, RolloutRequest):
        facts.requests[what] = digest([record.task_id, record.purpose, record.seed])
    elif isinstance(record, GroupAdvantages):
        facts.advantages[record.group_id] = digest([(m.sample_index, m.weight, m.advantage) for m in record.members])


def _note_outcome(facts: Facts, lineage: Lineage, outcome: Outcome) -> None:
    if not outcome.run_id or lineage.survives(outcome.run_id, outcome.step):
        facts.ends.setdefault(outcome.group_id, []).append(end_of(outcome))
    else:
        facts.num_superseded += 1


def end_of(outcome: Outcome) -> End:
    """What is compared of an outcome."""
    return End(**{name: getattr(outcome, name) for name in End.__struct_fields__})


def letter_of(letter: DeadLetter, expected: ExpectedOutcomes) -> Letter:
    """Who rejected what. A group's last input stands for the whole group, whichever it was."""
    group_id = letter.key.decode("utf-8", "replace")
    poison = expected.of(group_id).poison
    is_whole = poison is not None and poison.sample_index < 0
    return Letter(stage=letter.stage, group_id=group_id, sample_index=-1 if is_whole else _sample_in(letter))


def _sample_in(letter: DeadLetter) -> int:
    """Of the rejected record, be it one or none."""
    if letter.value.startswith(NO_RECORD):
        return int(letter.value.rpartition(b"/")[2])
    try:
        return sample_of(decode(RECORD_OF[letter.source.topic], letter.value))  # type: ignore[arg-type]
    except BadRecordError:
        return -2


def digest(value: Any) -> str:
    """A few bytes that stand for a value."""
    return hashlib.blake2b(msgspec.msgpack.encode(value), digest_size=8).hexdigest()
