"""Administration of topics and a look at the stages' lag: the only door to kafka-python.

In: a cluster. Every method blocks: call it in a thread where there is an event loop. One thread at a time.
A cluster that does not answer is an UnavailableError that names the addresses, within about `CONNECT_TIMEOUT_S`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import tenacity

from gagar.broker.address import no_cluster
from gagar.broker.meeting import check_cluster
from gagar.broker.security import client_arguments, read_token
from gagar.config import KafkaTable, Run
from gagar.errors import ClusterRefusalError, ConfigError
from gagar.stream.kafka.topic_plan import TopicChange, TopicState, differences, wanted_topics
from gagar.stream.spec import Stage, Topic
from gagar.stream.together import run_apart
from gagar.stream.transport import Committed

T = TypeVar("T")

WHAT_IS_NEEDED = "give the user of [kafka] the permissions that README.md lists"

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 15.0
COORDINATOR_POLL_S = 0.1
READY_TIMEOUT_S = 30.0
"""From a topic's creation until every partition has a leader."""


class Admin:
    """One connection to a cluster. `with Admin(cluster_now(run)) as admin: admin.apply(run, TOPICS)`."""

    def __init__(self, kafka: KafkaTable, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Raises UnavailableError if no broker answers, ConfigError if the cluster is to be met in another way."""
        from kafka import KafkaAdminClient

        self.kafka = kafka
        # The client leaves a thread and sockets behind when it fails to connect.
        check_cluster(kafka, connect_timeout_s)
        if kafka.has_sasl:
            _check_login(kafka)
        with self._told():
            self._client = KafkaAdminClient(
                **client_arguments(kafka),
                **_token_argument(kafka),
                client_id="gagar-admin",
                bootstrap_timeout_ms=int(connect_timeout_s * 1000),
                request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
                reconnect_backoff_max_ms=500,
            )

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; quiet if it is broken."""
        self._client.close()

    def describe(self, names: Sequence[str]) -> dict[str, TopicState]:
        """Those of `names` that the cluster has, as they are."""
        with self._told():
            there = self._retried(lambda: self._partitions(names))
            settings = self._settings(list(there)) if there else {}
        return {
            name: TopicState(
                num_partitions=len(partitions),
                replication_factor=min(len(partition["replica_nodes"]) for partition in partitions),
                settings=settings[name],
            )
            for name, partitions in there.items()
        }

    def _settings(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """All settings in force of each topic, those of the broker's configuration included."""
        from kafka.admin import ConfigResource

        answer = self._client.describe_configs([ConfigResource("topic", name) for name in names], config_filter="all")
        if hidden := [name for name, entries in answer["topic"].items() if not entries]:  # the client drops the error
            raise ConfigError(f"topic {hidden[0]}: expected to be told its settings, got none; this user may not describe them")
        return {
            name: {key: entry["value"] for key, entry in entries.items() if entry["value"] is not None}
            for name, entries in answer["topic"].items()
        }

    def num_brokers(self) -> int:
        """Brokers that the cluster has, those that are down included."""
        with self._told():
            return len(self._client.describe_cluster()["brokers"])

    def broker_setting(self, key: str) -> str:
        """A setting in force of one of the brokers; empty if this user may not see it."""
        from kafka.admin import ConfigResource

        with self._told():
            broker = min(self._client.describe_cluster()["brokers"], key=lambda broker: bool(broker.get("is_fenced")))
            resource = ConfigResource("broker", str(broker["broker_id"]))
            answer = self._client.describe_configs([resource], config_filter="all")["broker"]
        entry = answer.get(resource.name, {}).get(key)
        return str(entry["value"]) if entry else ""

    def has_topic(self, name: str) -> bool:
        """Whether there is a topic of that name, with leaders or without, or one that this user may not see."""
        from kafka.errors import UnknownTopicOrPartitionError

        with self._told():
            [topic] = self._client.describe_topics([name])
        return bool(topic["error_code"] != UnknownTopicOrPartitionError.errno)

    def plan(self, run: Run, topics: Sequence[Topic]) -> list[TopicChange]:
        """What `apply` would do, and what it would refuse to do: empty if the cluster is as the topology says."""
        wanted = wanted_topics(run, topics)
        return differences(wanted, self.describe(list(wanted)))

    def apply(self, run: Run, topics: Sequence[Topic]) -> list[TopicChange]:
        """Creates what is missing and sets what differs; returns what it did. Never deletes. Raises ConfigError, and changes
        nothing, if a topic differs in what only a person can decide. What the cluster refuses is a ConfigError with its
        answers, after all the rest is done."""
        changes = self.plan(run, topics)
        if undecided := [change.what for change in changes if change.kind == "refuse"]:
            raise ConfigError("\n".join(undecided))
        wanted = wanted_topics(run, topics)
        created = {change.topic: wanted[change.topic] for change in changes if change.kind == "create"}
        settings = [(change.topic, *setting) for change in changes for setting in change.settings.items()]
        with self._told():
            refused = self._create(created) if created else []
            refused += filter(None, (self._set(*setting) for setting in settings))
        if refused:
            raise ConfigError("\n".join(refused))
        return changes

    def _create(self, wanted: Mapping[str, TopicState]) -> list[str]:
        """Creates topics and waits for their leaders; the answer is what the cluster refuses. A topic that another process has
        created meanwhile is fine."""
        from kafka.errors import TopicAlreadyExistsError

        specs = {
            name: {
                "num_partitions": state.num_partitions,
                "replication_factor": state.replication_factor,
                "configs": state.settings,
            }
            for name, state in wanted.items()
        }
        answer = self._client.create_topics(specs, timeout_ms=int(REQUEST_TIMEOUT_S * 1000), raise_errors=False)
        refused: dict[str, str] = {}
        for topic in answer["topics"]:
            if topic["error_code"] != TopicAlreadyExistsError.errno:
                refused[topic["name"]] = _refusal(f"topic {topic['name']}: expected to be created", topic)
        made = {name: state.num_partitions for name, state in wanted.items() if not refused.get(name)}
        self._client.wait_for_topics(list(made), timeout_ms=int(READY_TIMEOUT_S * 1000))
        # A leader is named before it takes records; it answers for offsets as soon as it does.
        self._offsets(made, -1, is_committed=False)
        return [text for text in refused.values() if text]

    def _set(self, topic: str, key: str, value: str) -> str:
        """Sets one setting; the answer is the cluster's refusal, or empty. One at a time: a refusal stands for all that is
        asked for together of a topic."""
        from kafka.admin import AlterConfigOp, ConfigResourceType
        from kafka.protocol.admin import IncrementalAlterConfigsRequest

        resource = (ConfigResourceType.TOPIC, topic, [(key, AlterConfigOp.SET.value, value)])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        manager = self._client._manager  # the client itself answers with a text in place of the code
        [answer] = manager.run(manager.send, request).to_dict()["responses"]
        return _refusal(f"topic {topic}: expected {key}={value} to be set", answer)

    def end_offsets(self, topics: Mapping[str, int], *, is_committed: bool = True) -> dict[tuple[str, int], int]:
        """Next offset of each partition of `topics` (name on the cluster -> number of partitions): the last stable one, or
        with `is_committed=False` the one after everything written."""
        return self._offsets(topics, -1, is_committed)

    def start_offsets(self, topics: Mapping[str, int]) -> dict[tuple[str, int], int]:
        """First offset of each partition that retention has left."""
        return self._offsets(topics, -2, is_committed=False)

    def offsets_since(self, topics: Mapping[str, int], at: float) -> dict[tuple[str, int], int]:
        """First offset of each partition whose record the broker took at `at` (Unix seconds) or later; -1: there is none."""
        return self._offsets(topics, int(at * 1000), is_committed=False)

    def _offsets(self, topics: Mapping[str, int], spec: int, is_committed: bool) -> dict[tuple[str, int], int]:
        from kafka import TopicPartition

        partitions = {TopicPartition(name, index): spec for name, num in topics.items() for index in range(num)}
        if not partitions:
            return {}
        isolation = "read_committed" if is_committed else "read_uncommitted"
        with self._told():
            answer = self._client.list_partition_offsets(partitions, isolation_level=isolation)
        return {(partition.topic, partition.partition): found.offset for partition, found in answer.items()}

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Committed offsets of a consumer group; empty if it has none."""
        return {at: committed.offset for at, committed in self.positions(group).items()}

    def positions(self, group: str) -> dict[tuple[str, int], Committed]:
        """Committed offsets of a consumer group with their metadata; empty if it has none."""
        with self._told():
            answer = self._retried(lambda: self._client.list_group_offsets([group]))
        return {
            (at.topic, at.partition): Committed(offset=found.offset, metadata=found.metadata or "")
            for at, found in answer.get(group, {}).items()
            if found.offset >= 0
        }

    def has_members(self, groups: Sequence[str]) -> bool:
        """Whether any of these consumer groups has a member: a stage that is at work, or was a moment ago."""

        def ask() -> dict[str, Any]:
            answer: dict[str, Any] = self._client.describe_groups(list(groups))
            told = " ".join(group["error"] or "" for group in answer.values())
            for kind in _early():  # the client does not raise what a coordinator says of a single group
                if kind.__name__ in told:
                    raise kind(told)
            return answer

        with self._told():
            answer = self._retried(ask)
        faults = [group["error"] for group in answer.values() if group["error"] and "GroupIdNotFound" not in group["error"]]
        if faults:
            raise no_cluster(self.kafka.bootstrap_servers, faults[0])
        return any(group["members"] for group in answer.values())

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int], metadata: str) -> None:
        """Commits offsets of a consumer group that has no members, each with `metadata`."""
        from kafka import TopicPartition
        from kafka.errors import NoError
        from kafka.structs import OffsetAndMetadata

        wanted = {TopicPartition(*place): OffsetAndMetadata(offset, metadata, -1) for place, offset in offsets.items()}

        def ask() -> None:
            for kind in self._client.alter_group_offsets(group, wanted).values():
                if kind is not NoError:
                    raise kind()

        with self._told():
            self._retried(ask)

    def delete_before(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Lets partitions begin at these offsets, as retention does: what lies before is gone."""
        from kafka import TopicPartition

        with self._told():
            self._client.delete_records({TopicPartition(*at): offset for at, offset in offsets.items()})

    def _retried(self, ask: Callable[[], T]) -> T:
        """The answer of a topic's leader or a group's coordinator, which is not there at once: the first question creates the
        topic that groups live on, and after a broker's restart both are elsewhere or still read."""
        is_early = tenacity.retry_if_exception_type(_early())
        known: dict[Any, Any] = self._client._manager.cluster._coordinators  # never forgotten by the client itself
        stop, wait = tenacity.stop_after_delay(REQUEST_TIMEOUT_S), tenacity.wait_fixed(COORDINATOR_POLL_S)
        retrying = tenacity.Retrying(retry=is_early, stop=stop, wait=wait, reraise=True, before_sleep=lambda _: known.clear())
        return retrying(ask)

    def lags(self, run_name: str, stage: Stage) -> dict[str, int]:
        """Offsets between the group of `stage` and the last stable end, by input topic (name without the run's prefix).

        An upper bound of the records to do: transaction markers take offsets, and records finished beyond an unfinished one
        count until it is finished. Topics that do not exist are left out.
        """
        names = {f"{run_name}.{topic.name}": topic.name for topic in stage.inputs}
        if not names:
            return {}
        with self._told():
            told = self._retried(lambda: self._partitions(list(names)))
        partitions = {name: len(entries) for name, entries in told.items()}
        committed = self.committed(f"{run_name}.{stage.name}")
        starts, ends = self.start_offsets(partitions), self.end_offsets(partitions)
        lags = {names[name]: 0 for name in partitions}
        for (name, index), end in ends.items():
            position = max(committed.get((name, index), 0), starts[name, index])
            lags[names[name]] += max(0, end - position)
        return lags

    def _partitions(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """What is told of each partition of those of `names` that exist. Another error than that is raised: of a cluster that
        has just started a topic may have no leader yet."""
        from kafka.errors import UnknownTopicOrPartitionError, for_code

        found: list[dict[str, Any]] = self._client.describe_topics(list(names))
        there = [topic for topic in found if topic["error_code"] != UnknownTopicOrPartitionError.errno]
        for topic in there:
            if topic["error_code"]:
                raise for_code(topic["error_code"])(f"topic {topic['name']}")
        return {topic["name"]: topic["partitions"] for topic in there}

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turns the client's errors into ours."""
        from kafka.errors import AuthorizationError, KafkaError, UnsupportedVersionError

        try:
            yield
        except AuthorizationError as error:
            where = self.kafka.bootstrap_servers
            expected = "expected this user to be authorised"
            raise ClusterRefusalError(f"cluster at {where}: {expected}, got {error}; {WHAT_IS_NEEDED}") from error
        except UnsupportedVersionError as error:
            where = self.kafka.bootstrap_servers
            raise ClusterRefusalError(f"cluster at {where}: expected Apache Kafka 2.5 or newer, got {error}") from error
        except KafkaError as error:
            raise no_cluster(self.kafka.bootstrap_servers, f"{type(error).__name__}: {error}") from error


def _early() -> tuple[type[Exception], ...]:
    """What is said while a coordinator or a leader is on its way."""
    from kafka import errors

    coming = (errors.CoordinatorNotAvailableError, errors.CoordinatorLoadInProgressError, errors.LeaderNotAvailableError)
    return (*coming, errors.NotCoordinatorError)


def _refusal(expected: str, answer: Mapping[str, Any]) -> str:
    """What to say of a refusal; empty if the answer is none. Raises the client's error for what may pass."""
    from kafka.errors import for_code

    kind, text = for_code(answer["error_code"]), answer.get("error_message") or ""
    if kind.retriable:
        raise kind(text)
    return f"{expected}, got {kind.__name__}{f': {text}' if text else ''}" if answer["error_code"] else ""


def _check_login(kafka: KafkaTable) -> None:
    """Raises ConfigError if the cluster does not take the login."""
    from gagar.stream.kafka.connecting import check_login

    run_apart(check_login(kafka))


def _token_argument(kafka: KafkaTable) -> dict[str, Any]:
    """What OAUTHBEARER needs beside the other arguments: the token, read anew for each connection."""
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class AdminToken(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return read_token(kafka)

    return {"sasl_oauth_token_provider": AdminToken()} if kafka.sasl_token_file else {}
