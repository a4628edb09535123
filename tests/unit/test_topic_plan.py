"""What a topic should be, and how the cluster differs from it."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.stream.kafka.topic_plan import OVERHEAD_BYTES, TopicState, differences, max_kept_bytes, too_small, wanted_topics
from gagar.stream.spec import Topic
from tests.runs import make_run
from topology.stages import STAGES
from topology.topics import (
    GROUPS,
    OUTCOMES,
    POLICY_VERSIONS,
    ROLLOUT_REQUESTS,
    TOPICS,
    TRAJECTORIES,
    TRAJECTORY_TOKENS,
)


def wanted(topic: Topic, **kafka: int) -> TopicState:
    run = make_run(Path("/nowhere"), "", **kafka)
    return wanted_topics(run, [topic])[run.topic(topic.name)]


def test_grouped_topics_have_the_run_s_partitions_and_others_one() -> None:
    assert wanted(GROUPS, num_partitions=7).num_partitions == 7
    assert wanted(POLICY_VERSIONS, num_partitions=7).num_partitions == 1


def test_settings_follow_from_how_a_topic_is_kept() -> None:
    assert wanted(TRAJECTORIES).settings["cleanup.policy"] == "delete"
    assert int(wanted(TRAJECTORIES).settings["retention.ms"]) > 0
    assert wanted(GROUPS).settings["cleanup.policy"] == "delete"
    assert wanted(GROUPS).settings["retention.ms"] == wanted(GROUPS).settings["retention.bytes"] == "-1"
    assert wanted(TRAJECTORY_TOKENS).settings["retention.ms"] == "-1"
    assert int(wanted(TRAJECTORY_TOKENS).settings["retention.bytes"]) > 0
    assert wanted(OUTCOMES).settings["cleanup.policy"] == "compact"


@given(num=st.integers(1, 1024), budget=st.integers(1 << 30, 1 << 45))
def test_tokens_share_one_budget_whatever_the_number_of_partitions(num: int, budget: int) -> None:
    state = wanted(TRAJECTORY_TOKENS, num_partitions=num, token_retention_bytes=budget)
    share, segment = int(state.settings["retention.bytes"]), int(state.settings["segment.bytes"])
    smallest = int(state.settings["max.message.bytes"])
    assert share * num <= budget or share < 2 * smallest
    assert smallest < segment < 1 << 31
    assert max_kept_bytes(state) <= max(budget * 1.25 + num, num * 4 * smallest, budget + num * (512 << 20))


def test_many_partitions_do_not_multiply_what_is_kept() -> None:
    kept = {num: max_kept_bytes(wanted(TRAJECTORY_TOKENS, num_partitions=num)) >> 30 for num in (1, 4, 16, 64)}
    assert kept == {1: 16, 4: 18, 16: 20, 64: 20}


def test_what_stands_for_a_group_is_kept_as_long_as_the_run() -> None:
    whole = [ROLLOUT_REQUESTS, *(topic for stage in STAGES if stage.holds_groups for topic in stage.inputs)]
    assert {topic.kept for topic in whole} == {"with the run"}


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_every_topic_takes_its_largest_record_uncompressed(topic: Topic) -> None:
    settings = wanted(topic).settings
    assert int(settings["max.message.bytes"]) == topic.max_record_bytes + OVERHEAD_BYTES
    assert settings["compression.type"] == "producer"
    segment = settings.get("segment.bytes")
    assert segment is None or int(segment) > int(settings["max.message.bytes"])


def test_a_topic_s_own_settings_win() -> None:
    topic = msgspec.structs.replace(GROUPS, settings={"retention.ms": "1000"})
    assert wanted(topic).settings["retention.ms"] == "1000"


def test_one_replica_may_fail_where_there_are_several() -> None:
    assert wanted(GROUPS, replication_factor=1).settings["min.insync.replicas"] == "1"
    assert wanted(GROUPS, replication_factor=3).settings["min.insync.replicas"] == "2"


def state(num_partitions: int = 4, replication_factor: int = 1, **settings: str) -> TopicState:
    return TopicState(num_partitions=num_partitions, replication_factor=replication_factor, settings=settings)


def test_a_missing_topic_is_created() -> None:
    (change,) = differences({"r.groups": state()}, {})
    assert (change.kind, change.what) == ("create", "topic r.groups: expected 4 partitions, got no such topic")


def test_another_number_of_partitions_is_refused_and_named() -> None:
    (change,) = differences({"x": state(4)}, {"x": state(2)})
    assert change.kind == "refuse"
    assert change.what.startswith("topic x: expected 4 partitions, got 2; ")
    assert change.what.endswith(": set kafka.num_partitions=2 if the run was made with it, else take another run.name")


def test_topics_of_which_one_has_grown_leave_another_run_name_only() -> None:
    changes = differences({"x": state(2), "y": state(2), "z": state(1)}, {"x": state(4), "y": state(2), "z": state(1)})
    assert [change.what.partition("; ")[2] for change in changes] == ["a change would tear groups apart: take another run.name"]


def test_another_replication_factor_is_refused_and_named() -> None:
    (change,) = differences({"x": state(replication_factor=3)}, {"x": state(replication_factor=1)})
    assert (change.kind, change.what.partition(";")[0]) == ("refuse", "topic x: expected replication factor 3, got 1")


def test_each_setting_that_drifted_is_set_and_others_are_left() -> None:
    found = state(a="2", c="operator's own")
    changes = differences({"x": state(a="1", b="1")}, {"x": found})
    assert [(change.kind, change.settings) for change in changes] == [("set", {"a": "1"}), ("set", {"b": "1"})]
    assert [change.what for change in changes] == ["topic x: expected a=1, got 2", "topic x: expected b=1, got nothing"]


states = st.dictionaries(st.sampled_from("xyz"), st.builds(state, st.integers(1, 3), a=st.sampled_from("12")))


@given(wanted=states, found=states)
def test_what_is_as_wanted_needs_no_change_and_strangers_are_left_alone(
    wanted: dict[str, TopicState], found: dict[str, TopicState]
) -> None:
    assert differences(wanted, {**found, **wanted}) == []
    assert {change.topic for change in differences(wanted, found)} <= set(wanted)


def test_a_topic_that_takes_smaller_records_than_stages_write_is_named() -> None:
    def bound(num_bytes: int) -> TopicState:
        return TopicState(num_partitions=4, replication_factor=1, settings={"max.message.bytes": str(num_bytes)})

    wanted = dict.fromkeys(("a", "b", "c", "d"), bound(1000))
    assert too_small(wanted, {"a": bound(999), "b": bound(1000), "c": bound(1001)}) == [
        "topic a: expected max.message.bytes=1000 or more, got 999; run `gagar topics apply`",
    ]
