"""Why there is no coordinator, as far as the cluster tells."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from gagar.errors import EXIT_REFUSED, EXIT_UNAVAILABLE, ClusterRefusalError, ConfigError, GagarError, UnavailableError
from gagar.stream.kafka.admin import Admin
from gagar.stream.kafka.preflight import GROUPS, TRANSACTIONS, Coordinators, _explained, check_sizes
from gagar.stream.kafka.topic_plan import TopicState
from tests.runs import make_run
from topology.topics import VERDICTS

LATE = UnavailableError("producer preflight: expected its transaction coordinator within 20 s, got none")


class FakeAdmin:
    """A cluster as its administration describes it."""

    def __init__(self, num_brokers: int = 1, factor: str = "3", topics: tuple[str, ...] = ()) -> None:
        self._num_brokers, self._factor, self._topics = num_brokers, factor, topics

    def describe(self, names: Sequence[str]) -> dict[str, TopicState]:
        if self._factor == "forbidden":
            raise ConfigError("settings")
        settings = {"max.message.bytes": "1000000"}
        return {name: TopicState(num_partitions=1, replication_factor=1, settings=settings) for name in names}

    def num_brokers(self) -> int:
        if not self._num_brokers:
            raise UnavailableError("no cluster")
        return self._num_brokers

    def has_topic(self, name: str) -> bool:
        return name in self._topics

    def broker_setting(self, key: str) -> str:
        if self._factor == "forbidden":
            raise ConfigError(key)
        return self._factor


def explained(admin: FakeAdmin, coordinators: Coordinators = TRANSACTIONS) -> GagarError:
    return _explained(cast(Admin, admin), coordinators, LATE)


def test_more_replicas_than_brokers_are_named_by_their_setting() -> None:
    error = explained(FakeAdmin(num_brokers=2))
    assert str(error).startswith(
        "transaction.state.log.replication.factor: expected at most 2, the number of brokers, got 3: there can be no transac"
    )
    assert error.exit_code == EXIT_REFUSED
    assert str(explained(FakeAdmin(), GROUPS)).startswith("offsets.topic.replication.factor: expected at most 1")


@pytest.mark.parametrize(
    "admin",
    [
        FakeAdmin(factor="1"),
        FakeAdmin(num_brokers=3),
        FakeAdmin(topics=("__transaction_state",)),  # made when there were more brokers: those are down
        FakeAdmin(factor=""),  # may not be seen
    ],
)
def test_what_may_pass_is_an_outage_that_says_where_to_look(admin: FakeAdmin) -> None:
    error = explained(admin)
    assert str(error).startswith(f"{LATE}; try again if the cluster has just started, else see whether it has brokers enough")
    assert "for __transaction_state: transaction.state.log.replication.factor, min.isr" in str(error)
    assert error.exit_code == EXIT_UNAVAILABLE


@pytest.mark.parametrize("admin", [FakeAdmin(num_brokers=0), FakeAdmin(factor="forbidden")])
def test_a_cluster_that_does_not_tell_leaves_the_error_as_it_is(admin: FakeAdmin) -> None:
    assert explained(admin) is LATE


def test_a_topic_that_takes_smaller_records_only_is_refused_unless_it_may_not_be_seen(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(
        ClusterRefusalError, match=r"^topic test\.verdicts: expected max\.message\.bytes=1114112 or more, got 10"
    ):
        check_sizes(cast(Admin, FakeAdmin()), run, [VERDICTS])
    check_sizes(cast(Admin, FakeAdmin(factor="forbidden")), run, [VERDICTS])
