"""What a topic is and what a stage is: the types that `topology` fills in.

The runtime, the administration and the graph all read these; nothing here connects to anything.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

Kept = Literal["by time", "by bytes", "compacted", "with the run"]
"""with the run: a record stands for a whole group, which could never end if retention took it while the run lives."""
StageKind = Literal["source", "transform", "effect", "reducer", "learner"]
"""source: makes records from its own cursor and tables. transform: record in, records out, pure. effect: the same, async.
reducer: keyed state over several inputs. learner: reads by its own positions, saved in checkpoints."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, named without the run's prefix."""

    name: str
    record: type[msgspec.Struct]
    """The one record type that it carries."""
    kept: Kept
    is_grouped: bool = True
    """Keyed by group_id, and so partitioned like every other grouped topic; else one partition."""
    max_record_bytes: int = 1 << 20
    settings: dict[str, str] = {}
    """Broker settings beyond those that `kept` and `max_record_bytes` give."""

    def count_partitions(self, num_grouped: int) -> int:
        """Its partitions in a run whose grouped topics have `num_grouped`."""
        return num_grouped if self.is_grouped else 1


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage: the consumer group, the table of the run file, the service and the module all bear its name."""

    name: str
    """Kebab-case; its table in the run file is the same with underscores."""
    module: str
    """Import path; it holds `Config` (the type of its table) and `make(resources, config)`, and is light to import."""
    kind: StageKind
    inputs: tuple[Topic, ...] = ()
    """Consumed through the frontier (or, by the learner, through its checkpoint)."""
    tables: tuple[Topic, ...] = ()
    """Read whole from the start at each start and followed (not by the learner): no position is kept."""
    references: tuple[Topic, ...] = ()
    """Read by `LogRef` only."""
    outputs: tuple[Topic, ...] = ()
    holds_groups: bool = False
    """Each input record is a whole group: a dead letter ends it with an outcome."""

    @property
    def divided(self) -> tuple[Topic, ...]:
        """Topics whose partition numbers the members of the group divide among them. Of a source only the owner of number 0
        acts; the learner's rank 0 reads alone, by positions of its own."""
        if self.kind == "source":
            return self.tables[:1]
        return self.inputs if self.kind != "learner" else ()

    def all_topics(self, dead_letters: Topic) -> tuple[Topic, ...]:
        """All that it reads or writes."""
        return (*self.inputs, *self.tables, *self.references, *self.outputs, dead_letters)

    @property
    def table(self) -> str:
        """Name of its table in the run file."""
        return self.name.replace("-", "_")


def topic_of(topics: Iterable[Topic], record_type: type[msgspec.Struct]) -> Topic:
    """The one among `topics` that carries records of a type."""
    return next(topic for topic in topics if topic.record is record_type)
