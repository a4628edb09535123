"""A source that counts. Light to import: processes that tests start have it too."""

from collections.abc import Sequence
from typing import Any

from gagar.records import Outcome
from gagar.stream.handlers import Output, Source
from tests.builders import make_request
from tests.contract.world import OUTCOMES, REQUESTS, VERSIONS, make_stage

STAGE = make_stage("source", inputs=(), tables=(OUTCOMES, VERSIONS), outputs=(REQUESTS,), name="asker")


class Counting(Source):
    """Makes two requests per unit, at most `ahead` units before their outcomes; `total` units in all."""

    def __init__(self, total: int, ahead: int = 1000) -> None:
        self.total, self.ahead = total, ahead
        self.cursor = 0
        self.outcomes: set[str] = set()
        self.restored: list[bytes] = []
        self.seen_at_first: int | None = None

    def restore(self, cursor: bytes) -> None:
        self.restored.append(cursor)
        self.cursor = int(cursor or b"0")

    def observe(self, record: Any) -> None:
        if isinstance(record, Outcome):
            self.outcomes.add(record.group_id)

    def next_unit(self) -> tuple[Sequence[Output], bytes] | None:
        if self.seen_at_first is None:
            self.seen_at_first = len(self.outcomes)
        if self.cursor >= min(self.total, len(self.outcomes) + self.ahead):
            return None
        group_id = f"t-{self.cursor:06d}"
        self.cursor += 1
        return [make_request(group_id, 0), make_request(group_id, 1)], str(self.cursor).encode()

    @property
    def is_done(self) -> bool:
        return self.cursor >= self.total
