"""What a topic should be on the cluster, and how what is there differs: pure, no client.

In: the topology's `Topic`s, the run's tables, what the cluster reports. Out: changes and drifts, as data and as text.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from gagar.config import Run
from gagar.stream.pinned_topics import partitions_text
from gagar.stream.spec import Kept, Topic

OVERHEAD_BYTES = 64 << 10
"""Room for key, headers and the batch around the largest record."""
RETENTION_MS = 7 * 24 * 3600 * 1000
COMPACTED_SEGMENT_BYTES = 64 << 20
"""Only closed segments are compacted, so they are small."""
MAX_SEGMENT_BYTES = 512 << 20
"""Of a topic kept by bytes."""
SEGMENTS = 4
"""Of such a partition, at least, so that little more is kept than is asked for: only whole segments are deleted."""

KEPT_SETTINGS: dict[Kept, dict[str, str]] = {
    "by time": {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS), "retention.bytes": "-1"},
    "by bytes": {"cleanup.policy": "delete", "retention.ms": "-1"},
    "with the run": {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    "compacted": {"cleanup.policy": "compact", "segment.bytes": str(COMPACTED_SEGMENT_BYTES)},
}

ChangeKind = Literal["create", "set", "refuse"]
"""refuse: what no change mends without loss; a person must decide."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it should be, or as it is."""

    num_partitions: int
    replication_factor: int
    settings: dict[str, str]
    """As it should be: those that are ours to say. As it is: all of them."""


class TopicChange(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between the cluster and the topology."""

    kind: ChangeKind
    topic: str
    """Name on the cluster."""
    what: str
    """`topic x: expected ..., got ...`."""
    settings: dict[str, str] = {}
    """What to set, if `kind` is set."""


def wanted_topics(run: Run, topics: Sequence[Topic]) -> dict[str, TopicState]:
    """What `topics` should be in this run, by name on the cluster."""
    return {run.topic(topic.name): _wanted(run, topic) for topic in topics}


def _wanted(run: Run, topic: Topic) -> TopicState:
    factor = run.kafka.replication_factor
    return TopicState(
        num_partitions=topic.count_partitions(run.kafka.num_partitions),
        replication_factor=factor,
        settings={
            **KEPT_SETTINGS[topic.kept],
            **(_share(run, topic) if topic.kept == "by bytes" else {}),
            "compression.type": "producer",
            "max.message.bytes": str(topic.max_record_bytes + OVERHEAD_BYTES),
            # One clock for all records, so that deadlines do not depend on the writers' clocks.
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": str(max(1, factor - 1)),
            **topic.settings,
        },
    )


def _share(run: Run, topic: Topic) -> dict[str, str]:
    """What a partition keeps of a budget for the whole topic. A segment takes the largest record, so the share of each of many
    partitions is no less than that."""
    smallest = topic.max_record_bytes + 2 * OVERHEAD_BYTES
    share = max(smallest, run.kafka.token_retention_bytes // run.kafka.num_partitions)
    segment = max(smallest, min(MAX_SEGMENT_BYTES, share // SEGMENTS))
    return {"retention.bytes": str(share), "segment.bytes": str(segment)}


def max_kept_bytes(state: TopicState) -> int:
    """Most bytes that retention leaves of a topic kept by bytes, before replication: the last segment is never deleted."""
    return state.num_partitions * (int(state.settings["retention.bytes"]) + int(state.settings["segment.bytes"]))


def differences(wanted: Mapping[str, TopicState], found: Mapping[str, TopicState]) -> list[TopicChange]:
    """All changes that lead from `found` to `wanted`; topics beyond `wanted` are none of our business."""
    changes: list[TopicChange] = []
    most = max((state.num_partitions for state in wanted.values()), default=0)
    numbers = {found[name].num_partitions for name, state in wanted.items() if name in found and state.num_partitions == most}
    for name, state in wanted.items():
        there = found.get(name)
        if there is None:
            what = f"topic {name}: expected {partitions_text(state.num_partitions)}, got no such topic"
            changes.append(TopicChange(kind="create", topic=name, what=what))
        else:
            changes += _drifts(name, state, there, is_torn=len(numbers) > 1)
    return changes


def too_small(wanted: Mapping[str, TopicState], found: Mapping[str, TopicState]) -> list[str]:
    """What to say of each topic that takes smaller records only than stages write: they would become dead letters."""
    key = "max.message.bytes"
    pairs = [(name, int(wanted[name].settings[key]), int(there.settings[key])) for name, there in found.items()]
    return [
        f"topic {name}: expected {key}={least} or more, got {got}; run `gagar topics apply`"
        for name, least, got in pairs
        if got < least
    ]


def _drifts(name: str, wanted: TopicState, there: TopicState, *, is_torn: bool) -> list[TopicChange]:
    """`is_torn`: topics that must have equal numbers of partitions differ, so that no number is right."""
    changes = []
    if wanted.num_partitions != there.num_partitions:
        what = (
            f"topic {name}: expected {partitions_text(wanted.num_partitions)}, got {there.num_partitions}; "
            "a change would tear groups apart: "
            f"{'' if is_torn else f'set kafka.num_partitions={there.num_partitions} if the run was made with it, else '}"
            "take another run.name"
        )
        changes.append(TopicChange(kind="refuse", topic=name, what=what))
    if wanted.replication_factor != there.replication_factor:
        what = (
            f"topic {name}: expected replication factor {wanted.replication_factor}, got {there.replication_factor}; "
            "reassign the partitions, or set kafka.replication_factor to what is there"
        )
        changes.append(TopicChange(kind="refuse", topic=name, what=what))
    for key, value in wanted.settings.items():
        got = there.settings.get(key)
        if got != value:
            what = f"topic {name}: expected {key}={value}, got {'nothing' if got is None else got}"
            changes.append(TopicChange(kind="set", topic=name, what=what, settings={key: value}))
    return changes
