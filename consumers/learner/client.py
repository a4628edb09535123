"""The log as the main thread of a rank sees it: ordinary calls, each with a time limit; the event loop is in the background."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gagar.errors import UnavailableError
from gagar.stream.handlers import Delivery, Output, References
from gagar.stream.journal import Journal
from gagar.stream.spec import Topic
from gagar.training.background import Background

logger = logging.getLogger(__name__)
OPEN_S = 60.0
COMMIT_S = 60.0
TABLE_S = 300.0
CLOSE_S = 5.0
SLACK_S = 90.0
"""What a poll may take beyond its own time limit: a new reader, or a dead letter's transaction, of a log that is slow."""


class OpenReferences(References, Protocol):
    """References with a life of their own."""

    async def connect(self) -> None: ...

    async def close(self) -> None: ...


class LogClient:
    """What every rank has: reads by reference, between `connect` and `close`."""

    def __init__(self, port: Journal | OpenReferences, references: References, background: Background) -> None:
        self.references = references
        self.background = background
        self._port = port

    def connect(self) -> None:
        """Fences nobody."""
        self.background.call(self._port.connect(), timeout_s=OPEN_S, what="learner log")

    def close(self) -> None:
        try:
            self.background.call(self._port.close(), timeout_s=CLOSE_S, what="learner log close")
        except UnavailableError as error:
            logger.warning("log not closed error=%s", error)


class ReferencesClient(LogClient):
    """Of the ranks other than the first."""

    def __init__(self, references: OpenReferences, background: Background) -> None:
        super().__init__(references, references, background)


class JournalClient(LogClient):
    """Of rank 0. Calls of one thread, one at a time."""

    def __init__(self, journal: Journal, background: Background) -> None:
        super().__init__(journal, journal.references, background)
        self._journal = journal

    @property
    def input_id(self) -> str:
        """Of the topic that is read; empty if the log tells none. Known once connected."""
        return self._journal.input_id

    def take_over(self) -> None:
        """Fences the predecessor."""
        self.background.call(self._journal.open(), timeout_s=OPEN_S, what="learner journal")

    def seek(self, positions: Mapping[int, int]) -> None:
        self.background.call(self._journal.seek(positions), timeout_s=OPEN_S, what="learner journal seek")

    def poll(self, timeout_s: float) -> list[Delivery[Any]]:
        """What can be read; nothing while the log is out of reach. One that has failed, or took too long, ends the learner: it
        may have taken records from the log that nobody was given, and a new run reads them again from its checkpoint."""
        return self.background.call(self._journal.poll(timeout_s), timeout_s=timeout_s + SLACK_S, what="learner journal poll")

    def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> None:
        """One transaction. One that has failed, or may have, ends the learner: only a new run knows what became of it."""
        self.background.call(self._journal.commit(outputs, positions), timeout_s=COMMIT_S, what="learner journal commit")

    def read_table(self, topic: Topic, observe: Callable[[Any], None]) -> None:
        """Calls `observe`, on the log's thread, with each record."""
        self.background.call(self._journal.read_table(topic, observe), timeout_s=TABLE_S, what=f"table {topic.name}")
