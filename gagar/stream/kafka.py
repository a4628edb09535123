"""The Kafka transport: the only door to aiokafka."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from gagar.stream.handlers import Delivery
from gagar.stream.spec import Topic


async def scan(servers: str, run_name: str, topics: Sequence[Topic], *, follow: bool = False) -> AsyncIterator[Delivery[Any]]:
    """Committed records of `topics` from their start to their present end (or on and on with `follow`), decoded.

    Per partition in log order; tombstones and bad records are skipped, the latter with a warning.
    """
    raise NotImplementedError
    yield  # pragma: no cover
