"""A question that aiokafka (0.14) cannot ask by itself: the ids of topics (Metadata, version 10; Apache Kafka 2.8 or newer).

In: a started client, names on the cluster. Out: id and number of partitions of the topics that exist. A cluster that is older
tells no ids.
"""

import base64
import random
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from aiokafka import errors
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from gagar.stream.transport import TopicIdentity

ID_BYTES = 16
NO_ID = bytes(ID_BYTES)


class Uuid:
    """A topic's id on the wire."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(ID_BYTES)


BROKER = Schema(
    ("node_id", Int32), ("host", CompactString()), ("port", Int32), ("rack", CompactString()), ("tags", TaggedFields)
)
PARTITION = Schema(
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)),
    ("offline_replicas", CompactArray(Int32)),
    ("tags", TaggedFields),
)
TOPIC = Schema(
    ("error_code", Int16),
    ("topic", CompactString()),
    ("topic_id", Uuid),
    ("is_internal", Boolean),
    ("partitions", CompactArray(PARTITION)),
    ("operations", Int32),
    ("tags", TaggedFields),
)


class MetadataResponse_v10(Response):  # type: ignore[misc]
    """The cluster's topics, with their ids."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(BROKER)),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        ("topics", CompactArray(TOPIC)),
        ("operations", Int32),
        ("tags", TaggedFields),
    )


class MetadataRequest_v10(RequestStruct):  # type: ignore[misc]
    """Asks for topics by name."""

    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = MetadataResponse_v10
    SCHEMA = Schema(
        ("topics", CompactArray(Schema(("topic_id", Uuid), ("name", CompactString()), ("tags", TaggedFields)))),
        ("allow_auto_topic_creation", Boolean),
        ("with_cluster_operations", Boolean),
        ("with_topic_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicsRequest(Request[MetadataRequest_v5 | MetadataRequest_v10]):  # type: ignore[misc]
    """The same, in the newest of the two versions that the cluster speaks. It creates nothing."""

    API_KEY = 3

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is MetadataRequest_v10:
            return MetadataRequest_v10([(NO_ID, name, {}) for name in self._names], False, False, False, {})
        return request_struct_class(list(self._names), False)


async def topic_identities(client: Any, names: Sequence[str]) -> dict[str, TopicIdentity]:
    """What the first node that answers tells of the topics that exist, by name. Raises the client's errors."""
    answer = await _ask(client, TopicsRequest(names))
    found: dict[str, TopicIdentity] = {}
    for topic in answer.to_object()["topics"]:
        kind = errors.for_code(topic["error_code"])
        if kind is errors.NoError:
            number = topic.get("topic_id", NO_ID)
            text = "" if number == NO_ID else base64.urlsafe_b64encode(number).decode().rstrip("=")
            found[topic["topic"]] = TopicIdentity(text, len(topic["partitions"]))
        elif kind is not errors.UnknownTopicOrPartitionError:
            raise kind(topic["topic"])
    return found


async def _ask(client: Any, request: TopicsRequest) -> Any:
    nodes = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(nodes)
    failure: Exception = errors.NodeNotReadyError("no broker is known")
    for node in nodes:
        try:
            return await client.send(node, request)
        except errors.KafkaError as error:
            failure = error
        except KeyError:  # of a connection that the client has dropped while it waited for the answer
            failure = errors.NodeNotReadyError(f"node {node}: the connection was dropped")
    raise failure
