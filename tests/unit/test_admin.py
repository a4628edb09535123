"""What a cluster tells of topics: one that does not exist is left out, any other error is one."""

from collections.abc import Sequence
from typing import Any

import pytest

from gagar.config import KafkaTable
from gagar.errors import ClusterRefusalError, ConfigError, UnavailableError
from gagar.stream.kafka import admin as module
from gagar.stream.kafka.admin import Admin
from gagar.stream.spec import Stage
from tests.contract.world import REQUESTS, VERDICTS, make_stage

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, TIMED_OUT, NOT_AUTHORISED, UNSUPPORTED_VERSION, NOT_CONTROLLER = 3, 5, 7, 29, 35, 41
STAGE: Stage = make_stage("effect", (REQUESTS, VERDICTS))


class FakeClient:
    """Answers each question with the next codes of its topics, and the last ones again and again."""

    def __init__(self, *codes: Sequence[int]) -> None:
        self._codes = list(codes)
        self.hidden: set[str] = set()
        self._manager: Any = type("Manager", (), {"cluster": type("Cluster", (), {"_coordinators": {}})})

    def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
        codes = self._codes.pop(0) if len(self._codes) > 1 else self._codes[0]
        partitions = [{"replica_nodes": [0]}]
        return [
            {"name": name, "error_code": code, "partitions": [] if code else partitions}
            for name, code in zip(names, codes, strict=True)
        ]

    def describe_configs(self, resources: Sequence[Any], config_filter: str) -> dict[str, Any]:
        told = {"retention.ms": {"value": "1"}}
        return {"topic": {resource.name: {} if resource.name in self.hidden else told for resource in resources}}

    def list_group_offsets(self, groups: Sequence[str]) -> dict[str, Any]:
        return {}

    def list_partition_offsets(self, asked: Any, isolation_level: str) -> dict[Any, Any]:
        return {at: type("Found", (), {"offset": 7 if spec == -1 else 0}) for at, spec in asked.items()}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 0.02)
    monkeypatch.setattr(module, "COORDINATOR_POLL_S", 0.001)


def make_admin(*codes: Sequence[int]) -> Admin:
    admin = Admin.__new__(Admin)
    admin.kafka, admin._client = KafkaTable(bootstrap_servers="localhost:9"), FakeClient(*codes)
    return admin


def test_a_topic_that_does_not_exist_is_left_out() -> None:
    assert list(make_admin([0, UNKNOWN_TOPIC]).describe(["a", "b"])) == ["a"]
    assert make_admin([0, UNKNOWN_TOPIC]).lags("t", STAGE) == {"rollout-requests": 7}


def test_a_topic_without_a_leader_yet_is_asked_for_again() -> None:
    admin = make_admin([LEADER_NOT_AVAILABLE, 0], [0, 0])
    assert list(admin.describe(["a", "b"])) == ["a", "b"]
    admin = make_admin([0, LEADER_NOT_AVAILABLE], [0, 0])
    assert admin.lags("t", STAGE) == {"rollout-requests": 7, "verdicts": 7}


@pytest.mark.parametrize("code", [LEADER_NOT_AVAILABLE, TIMED_OUT])
def test_a_topic_of_which_the_cluster_cannot_tell_does_not_count_as_absent(code: int) -> None:
    with pytest.raises(UnavailableError, match="topic b"):
        make_admin([0, code]).describe(["a", "b"])
    with pytest.raises(UnavailableError, match=r"topic t\.verdicts"):
        make_admin([0, code]).lags("t", STAGE)


def test_settings_that_this_user_may_not_see_do_not_count_as_drifted() -> None:
    admin = make_admin([0, 0])
    admin._client.hidden = {"b"}
    with pytest.raises(ConfigError, match="topic b: expected to be told its settings, got none; this user may not describe"):
        admin.describe(["a", "b"])


def test_what_this_user_may_not_do_is_no_outage() -> None:
    with pytest.raises(ConfigError, match=r"expected this user to be authorised, got .*TopicAuthorizationFailedError: topic b"):
        make_admin([0, NOT_AUTHORISED]).describe(["a", "b"])


def test_a_cluster_that_is_too_old_is_no_outage() -> None:
    with pytest.raises(ClusterRefusalError, match=r"expected Apache Kafka 2.5 or newer, got .*UnsupportedVersionError"):
        make_admin([0, UNSUPPORTED_VERSION]).describe(["a", "b"])


@pytest.mark.parametrize("code", [NOT_CONTROLLER, TIMED_OUT])
def test_a_change_that_the_cluster_could_not_make_now_is_an_outage_and_no_refusal(code: int) -> None:
    with pytest.raises(UnavailableError), make_admin()._told():
        module._refusal("topic a: expected to be created", {"error_code": code, "error_message": "later"})
