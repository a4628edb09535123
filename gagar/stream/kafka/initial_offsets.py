"""Where the groups of a run begin: at offset 0 of each input, committed before any stage starts.

So a group without a committed offset is never one that has not begun yet. Its offsets are lost: forgotten by the broker, which
keeps those of an idle group for `offsets.retention.minutes` only, or not there for a coordinator that has just started (Apache
Kafka 4.3.1 was seen to answer so after a restart, from an empty state). To begin anew would do everything twice.
"""

from collections.abc import Iterable

from gagar.config import Run
from gagar.errors import UnavailableError
from gagar.stream.kafka.admin import Admin
from gagar.stream.lanes.frontier import AT_START
from gagar.stream.spec import Stage


def commit_initial_offsets(admin: Admin, run: Run, stages: Iterable[Stage]) -> None:
    """Commits offset 0 for groups that have no offset. Raises UnavailableError if a topic has records, in whatever partition:
    the group may have been past them, or the topic has grown, and groups would be torn apart."""
    for stage in stages:
        group = run.topic(stage.name)
        missing = sorted(_partitions(run, stage) - admin.committed(group).keys())
        if not missing:
            continue
        ends = admin.end_offsets({topic: number + 1 for topic, number in missing}, is_committed=False)
        used = {topic for (topic, _), end in ends.items() if end}
        written = [f"{topic}[{number}]" for topic, number in missing if topic in used]
        if written:
            raise UnavailableError(
                f"group {group}: expected committed offsets in {', '.join(written)}, got none though there are records; "
                "try again if the cluster has just started, else they are lost, or the topic has grown: take another run.name"
            )
        admin.commit(group, dict.fromkeys(missing, 0), AT_START)


def _partitions(run: Run, stage: Stage) -> set[tuple[str, int]]:
    """Topic (name on the cluster) and number of each partition in which the stage's group has an offset."""
    num_partitions = 1 if stage.kind == "source" else run.kafka.num_partitions
    return {(run.topic(topic.name), number) for topic in stage.divided for number in range(num_partitions)}
