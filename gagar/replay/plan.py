"""What one replay is made of, fixed when it begins: so one that was interrupted goes on with the same.

In: a stage, what was chosen, a way into the log. Out: a `ReplayPlan`, which its directory keeps: from where to where each input
and each recorded answer lies, and the log's time at its end.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gagar.errors import ConfigError
from gagar.records import DeadLetter, Outcome
from gagar.replay.selection import Selection
from gagar.stream.handlers import Delivery
from gagar.stream.readers.scans import Spans, scan_transport, spans_between
from gagar.stream.readers.watched import partitions_of
from gagar.stream.spec import Stage, Topic
from gagar.stream.transport import Partition, Transport

FILE, LOCK = "replay.json", "lock"
TAIL = 16
"""Last offsets of a partition among which its last record is: the others are markers of transactions."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """From where to where a partition is read."""

    topic: str
    partition: int
    begin: int
    """The first offset; more than 0: retention has taken those before."""
    end: int
    """The offset after the last one."""


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """See the module."""

    stage: str
    run: str
    asked: tuple[str, ...]
    """The choice as it was typed."""
    settings: dict[str, Any]
    """Of the stage, by dotted key of the run file."""
    selection: Selection
    inputs: tuple[Span, ...]
    answers: tuple[Span, ...]
    """Of the topics that hold what the stage answered, dead letters among them."""
    at: float
    """When it began, Unix seconds."""
    latest: float = 0.0
    """Broker time of the last record of all these: what is due later is in flight. 0 where no time matters."""

    def span(self, topic: Topic, number: int) -> Span:
        """Of one partition of an input."""
        [span] = [span for span in self.inputs if (span.topic, span.partition) == (topic.name, number)]
        return span

    @property
    def num_partitions(self) -> int:
        """Of the inputs."""
        return max((span.partition for span in self.inputs), default=-1) + 1

    @property
    def num_offsets(self) -> int:
        """To read, of all inputs."""
        return sum(span.end - span.begin for span in self.inputs)

    def retired(self) -> list[str]:
        """What retention has taken of the inputs."""
        return [
            f"{span.topic}[{span.partition}]: offsets below {span.begin} are gone: retention took them"
            for span in self.inputs
            if span.begin
        ]


def answer_topics(stage: Stage, dead_letters: Topic) -> tuple[Topic, ...]:
    """The topics that hold what a stage answered, those first whose records count over earlier ones. A stage that holds groups
    writes outcomes of dead letters only."""
    outputs = [topic for topic in stage.outputs if not (stage.holds_groups and topic.record is Outcome)]
    return (*outputs, dead_letters)


async def make_plan(
    transport: Transport,
    stage: Stage,
    dead_letters: Topic,
    *,
    run: str,
    asked: Sequence[str],
    settings: dict[str, Any],
    selection: Selection,
) -> ReplayPlan:
    """Asks for the ends of the answers first: whatever they answer is among the inputs then. Raises UnavailableError."""
    answers = await _spans_of(transport, answer_topics(stage, dead_letters))
    inputs = await _spans_of(transport, stage.inputs)
    latest = 0.0
    if stage.kind == "reducer":
        for topic in {topic.name: topic for topic in (*stage.inputs, *answer_topics(stage, dead_letters))}.values():
            if topic.record is not DeadLetter:
                latest = max(latest, await _latest(transport, topic, [*answers, *inputs]))
    return ReplayPlan(
        stage=stage.name,
        run=run,
        asked=tuple(asked),
        settings=settings,
        selection=selection,
        inputs=inputs,
        answers=answers,
        at=time.time(),
        latest=latest,
    )


async def with_later_begins(transport: Transport, stage: Stage, plan: ReplayPlan) -> ReplayPlan:
    """The plan, with what retention has taken of the inputs meanwhile."""
    now = {(span.topic, span.partition): span.begin for span in await _spans_of(transport, stage.inputs)}
    later = [replace(span, begin=min(span.end, now[span.topic, span.partition])) for span in plan.inputs]
    return replace(plan, inputs=tuple(later))


async def _spans_of(transport: Transport, topics: Sequence[Topic]) -> tuple[Span, ...]:
    found = await spans_between(transport, await partitions_of(transport, topics))
    return tuple(Span(topic=at.topic, partition=at.number, begin=begin, end=end) for at, (begin, end) in found.items())


async def _latest(transport: Transport, topic: Topic, spans: Sequence[Span]) -> float:
    tails = {
        Partition(span.topic, span.partition): (max(span.begin, span.end - TAIL), span.end)
        for span in spans
        if span.topic == topic.name
    }
    return max([delivery.at async for delivery in scan_transport(transport, [topic], spans=tails)], default=0.0)


def scan_of(spans: Sequence[Span], topic: Topic, number: int | None = None, begin: int = 0) -> Spans:
    """For a scan of a topic: all of it, or the partition of that number, from `begin` on."""
    return {
        Partition(span.topic, span.partition): (
            (max(span.begin, begin), span.end) if number in (None, span.partition) else (span.end, span.end)
        )
        for span in spans
        if span.topic == topic.name
    }


async def groups_of_steps(transport: Transport, outcomes: Topic, steps: Sequence[tuple[int, int]]) -> frozenset[str]:
    """The groups that were trained at one of these steps (first and last), or evaluated in its round."""
    found: set[str] = set()
    async for delivery in scan_transport(transport, [outcomes]):
        outcome: Delivery[Outcome] = delivery
        record = outcome.record
        if record.kind != "dropped" and any(first <= record.step <= last for first, last in steps):
            found.add(record.group_id)
    return frozenset(found)


def saved_plan(directory: Path) -> ReplayPlan | None:
    """The replay that was begun in a directory; none if none was. Raises ConfigError if something else is in it."""
    path = directory / FILE
    if path.is_file():
        try:
            return msgspec.json.decode(path.read_bytes(), type=ReplayPlan)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}: expected a replay that was begun, got {error}; take another --dir") from error
    if directory.exists() and (not directory.is_dir() or any(path.name != LOCK for path in directory.iterdir())):
        raise ConfigError(f"--dir {directory}: expected a new directory, or one with a replay, got another one; name a new one")
    return None


def save_plan(directory: Path, plan: ReplayPlan) -> None:
    """Keeps it where the replay is."""
    directory.mkdir(parents=True, exist_ok=True)
    part = directory / f"{FILE}.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1))
    part.replace(directory / FILE)
    (directory / "records.jsonl").touch()


def check_same(directory: Path, plan: ReplayPlan, stage: str, run: str, asked: Sequence[str], settings: dict[str, Any]) -> None:
    """Raises ConfigError unless the replay in `directory` is the one that is asked for now."""
    wrong = [
        f"{what} {_shown(got)} in place of {_shown(was)}"
        for what, was, got in (
            ("stage", plan.stage, stage),
            ("run", plan.run, run),
            ("a choice of", " ".join(plan.asked), " ".join(asked)),
            *((key, plan.settings.get(key), settings.get(key)) for key in {**plan.settings, **settings}),
        )
        if was != got
    ]
    if wrong:
        raise ConfigError(
            f"--dir {directory}: expected the replay that was begun there to go on, got {'; '.join(wrong)}; take another --dir"
        )


def _shown(value: Any) -> str:
    return value or "all" if isinstance(value, str) else msgspec.json.encode(value).decode()
