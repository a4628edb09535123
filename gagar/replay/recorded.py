"""What a stage answered when it was live, to be found by the input or the group that it answered.

In: the topics of the stage's answers, up to where the plan says. Out: the recorded answer to each one that is asked for, and in
the end those that nobody asked for. Kept: a temporary SQLite database without journal, which nobody else can open.
"""

import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import closing

import msgspec

from gagar.records import DeadLetter, Outcome, Record, Verdict, encode
from gagar.replay.answers import StageAnswer
from gagar.replay.plan import ReplayPlan, answer_topics, scan_of
from gagar.stream.handlers import Delivery
from gagar.stream.readers.scans import scan_transport
from gagar.stream.spec import Stage, Topic
from gagar.stream.transport import Transport

CACHE_KIB = 16 * 1024
"""Of the database's pages."""
_decoder = msgspec.msgpack.Decoder(Record)


class Recorded:
    """See the module."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        weakref.finalize(self, self._database.close)
        for statement in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {statement}")
        columns = "name TEXT PRIMARY KEY, record BLOB NOT NULL, is_due INTEGER NOT NULL"
        self._database.execute(f"CREATE TABLE answers ({columns}) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def put(self, name: str, record: Record, *, is_due: bool) -> None:
        """A recorded answer to `name`, which counts over an earlier one. `is_due`: it is missing if nobody takes it."""
        self._database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (name, encode(record), is_due))

    def take(self, name: str) -> Record | None:
        """The answer to `name`, if there is one."""
        row = self._database.execute("SELECT record FROM answers WHERE name = ?", (name,)).fetchone()
        self._database.execute("UPDATE answers SET is_due = 0 WHERE name = ?", (name,))
        return _decoder.decode(row[0]) if row else None

    def missing(self) -> Iterator[str]:
        """The names of those that are due and that nobody has taken."""
        with closing(self._database.execute("SELECT name FROM answers WHERE is_due ORDER BY name")) as rows:
            for (name,) in rows:
                yield name


async def read_recorded(transport: Transport, stage: Stage, dead_letters: Topic, plan: ReplayPlan) -> Recorded:
    """The answers of a stage to whatever the plan may select. Raises UnavailableError."""
    recorded = Recorded()
    for topic in reversed(answer_topics(stage, dead_letters)):
        async for delivery in scan_transport(transport, [topic], spans=scan_of(plan.answers, topic)):
            name = _recorded_name(stage, delivery)
            if name and (isinstance(delivery.record, DeadLetter) or plan.selection.takes_group(delivery)):
                recorded.put(name, delivery.record, is_due=_is_due(plan, delivery))
    return recorded


def _is_due(plan: ReplayPlan, delivery: Delivery[Record]) -> bool:
    """Whether the input that was answered is certain to be among what is selected. That of a dead letter is not: it may be a
    record that cannot be read."""
    record, selection = delivery.record, plan.selection
    if isinstance(record, DeadLetter):
        return False
    if not isinstance(record, Verdict):
        return not (selection.since or selection.until or selection.offsets)
    begins = {(span.topic, span.partition): span.begin for span in plan.inputs}
    is_gone = record.trajectory.offset < begins.get((record.trajectory.topic, record.trajectory.partition), 0)
    return is_gone and selection.takes(Delivery(ref=record.trajectory, key=delivery.key, record=record, at=delivery.at))


def name_of(answer: StageAnswer, stage: Stage) -> str:
    """What is asked for in `Recorded`: the input of a stage that says in its answers which it was, else the group."""
    return str(answer.input) if _is_by_input(stage) else answer.key


def _is_by_input(stage: Stage) -> bool:
    return any(topic.record is Verdict for topic in stage.outputs)


def _recorded_name(stage: Stage, delivery: Delivery[Record]) -> str:
    """What a recorded answer is found by; empty for a record that is none of the stage's."""
    record = delivery.record
    if isinstance(record, DeadLetter):
        is_own = record.stage == stage.name
        return (str(record.source) if _is_by_input(stage) else delivery.key) if is_own else ""
    if isinstance(record, Outcome) and (record.run_id or record.reason == "dead_letter"):
        return ""
    return str(record.trajectory) if isinstance(record, Verdict) else delivery.key
