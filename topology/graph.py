"""The topology checks itself and draws itself.

In: stages and topics as data. Out: faults as text, a mermaid drawing for the README. Nothing is connected to.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from gagar.errors import ConfigError
from gagar.stream.spec import Stage, Topic
from topology.stages import STAGES
from topology.topics import DEAD_LETTERS, OUTCOMES, TOPICS

README_BEGIN = "<!-- graph: made by `gagar topics graph` -->"
README_END = "<!-- graph end -->"
ENDS = (OUTCOMES, DEAD_LETTERS)
"""Topics that people and tools read, so that no stage has to; dead letters are written by every stage."""


def check_topology(stages: Sequence[Stage] = STAGES, topics: Sequence[Topic] = TOPICS) -> None:
    """Raises ConfigError that tells every fault."""
    faults = [*_doubles(stages, topics), *_unlisted(stages, topics), *_unconnected(stages, topics)]
    faults += [*_mispartitioned(stages), *_misread(stages)]
    if faults:
        raise ConfigError("\n".join(faults))


def _doubles(stages: Sequence[Stage], topics: Sequence[Topic]) -> Iterable[str]:
    """Names and record types stand for one thing each: the runtime finds an output's topic by its record type."""
    yield from _repeated("stage", (stage.name for stage in stages))
    yield from _repeated("stage table", (stage.table for stage in stages))
    yield from _repeated("stage module", (stage.module for stage in stages))
    yield from _repeated("topic", (topic.name for topic in topics))
    yield from _repeated("topic record", (topic.record.__name__ for topic in topics))
    for stage in stages:
        for role, used in (("input", stage.inputs), ("table", stage.tables), ("output", stage.outputs)):
            yield from _repeated(f"stage {stage.name}: {role}", (topic.name for topic in used))


def _repeated(kind: str, names: Iterable[str]) -> Iterable[str]:
    return (f"{kind} {name}: expected once, got {count} times" for name, count in Counter(names).items() if count > 1)


def _used(stage: Stage) -> tuple[Topic, ...]:
    return stage.inputs + stage.tables + stage.references + stage.outputs


def _unlisted(stages: Sequence[Stage], topics: Sequence[Topic]) -> Iterable[str]:
    names = {topic.name for topic in topics}
    for stage in stages:
        for topic in _used(stage):
            if topic.name not in names:
                yield f"stage {stage.name}: expected a topic of topology.topics, got {topic.name}"


def _unconnected(stages: Sequence[Stage], topics: Sequence[Topic]) -> Iterable[str]:
    ends = {topic.name for topic in ENDS}
    written = {topic.name for stage in stages for topic in stage.outputs} | {DEAD_LETTERS.name}
    read = {topic.name for stage in stages for topic in stage.inputs + stage.tables + stage.references}
    for topic in topics:
        if topic.name not in written:
            yield f"topic {topic.name}: expected a stage that writes it, got none"
        if topic.name not in read | ends:
            yield f"topic {topic.name}: expected a stage that reads it, got none"


def _mispartitioned(stages: Sequence[Stage]) -> Iterable[str]:
    for stage in stages:
        grouped = {topic.is_grouped for topic in stage.inputs}
        if len(grouped) > 1:
            names = ", ".join(topic.name for topic in stage.inputs)
            yield f"stage {stage.name}: expected inputs with one number of partitions, got {names}"
        if stage.holds_groups and not all(grouped):
            yield f"stage {stage.name}: expected inputs keyed by group_id, got {stage.inputs[0].name}"


def _misread(stages: Sequence[Stage]) -> Iterable[str]:
    """What the kind of a stage says of its inputs, and what a table must be."""
    for stage in stages:
        num = len(stage.inputs)
        if stage.kind == "source" and num:
            yield f"stage {stage.name}: expected a source without inputs, got {stage.inputs[0].name}"
        if stage.kind in ("transform", "effect") and num != 1:
            yield f"{stage.kind} stage {stage.name}: expected one input, got {num}"
        for topic in stage.tables:
            if topic.kept != "compacted":
                yield f"stage {stage.name}: expected a compacted topic as a table, got {topic.name} kept {topic.kept}"


def draw(stages: Sequence[Stage] = STAGES) -> str:
    """Mermaid, a line for each stage: stages as boxes, topics rounded; dotted: tables and records read by reference. Without
    `dead-letters`."""
    drawn: set[str] = set()
    lines = ["flowchart LR"]
    for stage in stages:
        ends = (_nodes(stage.inputs, drawn), f"{stage.table}[{stage.name}]", _nodes(stage.outputs, drawn))
        lines.append("  " + " --> ".join(end for end in ends if end))
        if looked_up := _nodes(stage.tables + stage.references, drawn):
            lines.append(f"  {looked_up} -.-> {stage.table}")
    lines.append("  classDef stage fill:#dbe9ff,stroke:#3b6cb7,color:#10254a")
    lines.append(f"  class {','.join(stage.table for stage in stages)} stage")
    return "\n".join(lines)


def _nodes(topics: Sequence[Topic], drawn: set[str]) -> str:
    """Topics joined with `&`; each is labelled where it is drawn first."""
    return " & ".join(_node(topic, drawn) for topic in topics)


def _node(topic: Topic, drawn: set[str]) -> str:
    """A topic's node; the identifier is prefixed, since a stage may bear the same name."""
    name = "t_" + topic.name.replace("-", "_")
    if topic.name in drawn:
        return name
    drawn.add(topic.name)
    return f"{name}([{topic.name}])"


def readme_block() -> str:
    """What the README holds between its markers, the markers included."""
    return f"{README_BEGIN}\n```mermaid\n{draw()}\n```\n{README_END}"
