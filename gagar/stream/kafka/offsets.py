"""The committed offsets of a consumer group, asked of its coordinator: question and answer as aiokafka (0.14) has them."""

from collections.abc import Iterable
from typing import Any

from aiokafka import errors
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.structs import TopicPartition

from gagar.stream.transport import Committed


def offset_fetch(group: str, names: Iterable[TopicPartition]) -> OffsetFetchRequest:
    """The question."""
    numbers: dict[str, list[int]] = {}
    for name in names:
        numbers.setdefault(name.topic, []).append(name.partition)
    return OffsetFetchRequest(group, list(numbers.items()))


def committed_offsets(answer: Any) -> dict[TopicPartition, Committed]:
    """What a coordinator says of the partitions that it was asked for, but for those it knows nothing of. Raises its errors.

    The client's own reading of the answer passes over the error of the whole: one from a coordinator that has just started
    reads as if nothing had ever been committed, and all would be done again.
    """
    _raise_for(getattr(answer, "error_code", 0))
    found: dict[TopicPartition, Committed] = {}
    for topic, entries in answer.topics:
        for number, offset, metadata, code in entries:
            _raise_for(code)
            if offset >= 0:
                found[TopicPartition(topic, number)] = Committed(offset=offset, metadata=metadata or "")
    return found


def _raise_for(code: int) -> None:
    kind = errors.for_code(code)
    if kind is not errors.NoError:
        raise kind()
