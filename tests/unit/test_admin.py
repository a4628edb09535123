"""What a cluster tells of topics: one that does not exist is left out, any other error is one."""

from collections.abc import Sequence
from typing import Any

import pytest

from gagar.errors import UnavailableError
from gagar.stream.kafka import admin as module
from gagar.stream.kafka.admin import Admin
from gagar.stream.spec import Stage
from tests.contract.world import REQUESTS, VERDICTS, make_stage

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, TIMED_OUT = 3, 5, 7
STAGE: Stage = make_stage("effect", (REQUESTS, VERDICTS))


class FakeClient:
    """Answers each question with the next codes of its topics, and the last ones again and again."""

    def __init__(self, *codes: Sequence[int]) -> None:
        self._codes = list(codes)
        self._manager: Any = type("Manager", (), {"cluster": type("Cluster", (), {"_coordinators": {}})})

    def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
        codes = self._codes.pop(0) if len(self._codes) > 1 else self._codes[0]
        partitions = [{"replica_nodes": [0]}]
        return [
            {"name": name, "error_code": code, "partitions": [] if code else partitions}
            for name, code in zip(names, codes, strict=True)
        ]

    def describe_configs(self, resources: Sequence[Any], config_filter: str) -> dict[str, Any]:
        return {"topic": {resource.name: {} for resource in resources}}

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
    admin._servers, admin._client = "localhost:9", FakeClient(*codes)
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
