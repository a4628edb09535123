"""The learner's way into the log: reads its input by positions that it keeps itself, writes in transactions.

In: the stage's input topics from given offsets. Out: outputs and, for lag only, the group's offsets. Kept: nothing; the
positions live in the learner's checkpoints.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gagar.stream.handlers import Delivery, Output, References
from gagar.stream.spec import Topic


class Journal(Protocol):
    """See the module."""

    references: References

    async def open(self) -> None:
        """Starts the transactional producer `<run>.<stage>.0`: fences a predecessor. Raises UnavailableError."""

    async def seek(self, positions: Mapping[int, int]) -> None:
        """Partition -> next offset; a missing partition starts at the earliest."""

    async def poll(self, timeout_s: float) -> list[Delivery[Any]]:
        """The next input records, decoded and bounded in number; bad ones have been dead-lettered, with their outcomes."""

    async def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> None:
        """One transaction: outputs and the group's offsets. Raises FencedError when a successor has taken over."""

    async def read_table(self, topic: Topic) -> list[Any]:
        """All records of a (compacted) topic up to its present end, in log order; tombstones are left out."""

    async def close(self) -> None: ...
