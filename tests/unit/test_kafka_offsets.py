"""What a group coordinator answers about committed offsets; an answer that is an error is none."""

import pytest
from aiokafka import errors  # noqa: TID251  what the client's classes hold is the point
from aiokafka.protocol.commit import OffsetFetchResponse_v1, OffsetFetchResponse_v3  # noqa: TID251
from aiokafka.structs import TopicPartition  # noqa: TID251

from gagar.stream.kafka.offsets import committed_offsets
from gagar.stream.transport import Committed

NOT_COORDINATOR, LOADING, UNKNOWN_TOPIC = 16, 14, 3


def test_offsets_and_their_metadata_are_read_and_a_partition_without_one_is_left_out() -> None:
    answer = OffsetFetchResponse_v3(0, [("t", [(0, 5, "m", 0), (1, -1, "", 0)])], 0)
    assert committed_offsets(answer) == {TopicPartition("t", 0): Committed(offset=5, metadata="m")}


def test_a_coordinator_that_has_just_started_does_not_say_that_nothing_is_committed() -> None:
    for code, error in ((NOT_COORDINATOR, errors.NotCoordinatorError), (LOADING, errors.CoordinatorLoadInProgressError)):
        with pytest.raises(error):
            committed_offsets(OffsetFetchResponse_v3(0, [], code))


def test_an_error_of_one_partition_is_an_error() -> None:
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        committed_offsets(OffsetFetchResponse_v1([("t", [(0, -1, "", UNKNOWN_TOPIC)])]))
