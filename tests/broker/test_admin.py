"""Topic administration on a real broker."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gagar.config import KafkaTable, Run, RunTable
from gagar.errors import ConfigError, UnavailableError
from gagar.stream.kafka.admin import Admin
from tests.runs import make_run
from topology.stages import GATHERER, SAMPLER, VERIFIER
from topology.topics import GROUPS, POLICY_VERSIONS, TOPICS, TRAJECTORIES

pytestmark = pytest.mark.broker


@pytest.fixture
def admin(kafka_servers: str) -> Iterator[Admin]:
    with Admin(KafkaTable(bootstrap_servers=kafka_servers)) as admin:
        yield admin


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    """A run of the test's own on the shared broker."""
    name = request.node.name.replace("[", "-").replace("]", "")[:80]
    return msgspec.structs.replace(make_run(Path("/nowhere")), run=RunTable(name=name))


def with_partitions(run: Run, num: int) -> Run:
    return msgspec.structs.replace(run, kafka=KafkaTable(num_partitions=num))


def test_plan_tells_what_apply_does_and_a_second_apply_does_nothing(admin: Admin, run: Run) -> None:
    planned = admin.plan(run, TOPICS)
    assert [change.kind for change in planned] == ["create"] * len(TOPICS)
    assert admin.apply(run, TOPICS) == planned
    assert admin.plan(run, TOPICS) == []
    assert admin.apply(run, TOPICS) == []


def test_the_brokers_are_counted(admin: Admin) -> None:
    assert admin.num_brokers() == 1


def test_topics_are_made_as_the_topology_says(admin: Admin, run: Run) -> None:
    admin.apply(run, TOPICS)
    found = admin.describe([run.topic("groups"), run.topic("policy-versions"), "no-such-topic"])
    assert found[run.topic("groups")].num_partitions == 4
    assert found[run.topic("policy-versions")].num_partitions == 1
    assert found[run.topic("policy-versions")].settings["cleanup.policy"] == "compact"
    assert "no-such-topic" not in found


def test_a_setting_that_drifted_is_told_and_mended(admin: Admin, run: Run) -> None:
    drifted = msgspec.structs.replace(GROUPS, settings={"retention.ms": "1000"})
    admin.apply(run, [drifted])
    (change,) = admin.plan(run, [GROUPS])
    assert change.what == f"topic {run.topic('groups')}: expected retention.ms=-1, got 1000"
    admin.apply(run, [GROUPS])
    deadline = time.monotonic() + 10
    while admin.plan(run, [GROUPS]) and time.monotonic() < deadline:
        time.sleep(0.1)  # a broker tells of a setting a moment after it was taken
    assert admin.plan(run, [GROUPS]) == []


def test_another_number_of_partitions_is_refused_and_nothing_is_changed(admin: Admin, run: Run) -> None:
    admin.apply(with_partitions(run, 2), [GROUPS])
    with pytest.raises(ConfigError, match=rf"topic {run.topic('groups')}: expected 4 partitions, got 2; "):
        admin.apply(run, [TRAJECTORIES, GROUPS])
    assert list(admin.describe([run.topic("groups"), run.topic("trajectories")])) == [run.topic("groups")]


def test_each_setting_that_the_broker_refuses_is_told_with_its_answer_and_the_others_are_set(admin: Admin, run: Run) -> None:
    admin.apply(run, [GROUPS, TRAJECTORIES])
    settings = {"retention.ms": "-7", "max.message.bytes": "1000000", "no.such.setting": "1"}
    asked = [msgspec.structs.replace(GROUPS, settings=settings), msgspec.structs.replace(TRAJECTORIES, settings=settings)]
    with pytest.raises(ConfigError) as refused:
        admin.apply(run, asked)
    told = str(refused.value).splitlines()
    assert [line.partition(" to be set, got ")[0] for line in told] == [
        f"topic {run.topic(name)}: expected {setting}"
        for name in ("groups", "trajectories")
        for setting in ("retention.ms=-7", "no.such.setting=1")
    ]
    invalid = "InvalidConfigurationError: Invalid value -7 for configuration retention.ms: Value must be at least -1"
    assert told[0].endswith(f", got {invalid}")
    names = [run.topic("groups"), run.topic("trajectories")]
    deadline = time.monotonic() + 10
    while {state.settings["max.message.bytes"] for state in admin.describe(names).values()} != {"1000000"}:
        assert time.monotonic() < deadline, "what could be set was not"
        time.sleep(0.1)


def test_each_topic_that_the_broker_does_not_create_is_told_with_its_answer_and_the_others_are_made(
    admin: Admin, run: Run
) -> None:
    asked = [msgspec.structs.replace(topic, settings={"retention.ms": "-7"}) for topic in (GROUPS, TRAJECTORIES)]
    with pytest.raises(ConfigError) as refused:
        admin.apply(run, [*asked, POLICY_VERSIONS])
    assert str(refused.value).splitlines() == [
        f"topic {run.topic(topic.name)}: expected to be created, got InvalidConfigurationError: "
        "Invalid value -7 for configuration retention.ms: Value must be at least -1"
        for topic in asked
    ]
    assert list(admin.describe([run.topic(topic.name) for topic in TOPICS])) == [run.topic("policy-versions")]


def test_more_replicas_than_there_are_brokers_are_refused_with_the_broker_s_answer(admin: Admin, run: Run) -> None:
    run = msgspec.structs.replace(run, kafka=KafkaTable(replication_factor=3, bootstrap_servers=admin.kafka.bootstrap_servers))
    with pytest.raises(ConfigError, match=r"expected to be created, got InvalidReplicationFactorError: .*3 time"):
        admin.apply(run, [GROUPS])


def test_lag_is_what_lies_before_the_end(admin: Admin, run: Run) -> None:
    assert admin.lags(run.run.name, VERIFIER) == {}
    admin.apply(run, TOPICS)
    assert admin.lags(run.run.name, SAMPLER) == {}
    assert admin.lags(run.run.name, GATHERER) == {"rollout-requests": 0, "verdicts": 0}
    assert set(admin.end_offsets({run.topic(POLICY_VERSIONS.name): 1}).values()) == {0}
    assert admin.committed(f"{run.run.name}.{VERIFIER.name}") == {}


@pytest.mark.parametrize("servers", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2", "nowhere.invalid:9092"])
def test_a_broker_that_is_not_there_is_told_within_seconds(servers: str) -> None:
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=rf"expected a Kafka cluster that answers at {servers}, got none; start it"):
        Admin(KafkaTable(bootstrap_servers=servers), connect_timeout_s=0.5)
    assert time.monotonic() - started < 5


def test_a_coordinator_that_has_moved_is_looked_for_again(admin: Admin) -> None:
    from kafka.errors import NotCoordinatorError  # noqa: TID251  what the client raises

    places = admin._client._manager.cluster._coordinators
    admin.committed("nobody")
    assert places, "the client remembers where it was"
    answers: list[bool] = []

    def ask() -> str:
        answers.append(bool(places))
        if len(answers) == 1:
            raise NotCoordinatorError
        return "found"

    assert admin._retried(ask) == "found"
    assert answers == [True, False]
