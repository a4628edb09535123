"""The topology checks itself and is drawn as the README shows it."""

import re
from pathlib import Path

import msgspec
import pytest

from gagar.errors import ConfigError
from gagar.stream.spec import Stage, Topic
from topology.graph import check_topology, draw, readme_block
from topology.stages import GATHERER, GRADER, SAMPLER, STAGES, VERIFIER, upstream_first
from topology.topics import DEAD_LETTERS, GROUPS, OUTCOMES, POLICY_VERSIONS, TOPICS, VERDICTS


def replaced(old: Stage, **fields: object) -> tuple[Stage, ...]:
    """The stages with one of them changed."""
    return tuple(msgspec.structs.replace(stage, **fields) if stage is old else stage for stage in STAGES)


def without(*topics: Topic) -> tuple[Topic, ...]:
    return tuple(topic for topic in TOPICS if topic not in topics)


def test_the_topology_is_sound() -> None:
    check_topology()


def test_an_input_without_a_writer_is_told() -> None:
    stages = replaced(VERIFIER, outputs=())
    with pytest.raises(ConfigError, match=r"^topic verdicts: expected a stage that writes it, got none$"):
        check_topology(stages)


def test_an_output_without_a_reader_is_told() -> None:
    stages = replaced(GRADER, inputs=(POLICY_VERSIONS,), holds_groups=False)
    with pytest.raises(ConfigError, match=r"^topic groups: expected a stage that reads it, got none$"):
        check_topology(stages)


def test_a_topic_that_is_not_listed_is_told() -> None:
    with pytest.raises(ConfigError, match=r"stage verifier: expected a topic of topology\.topics, got verdicts"):
        check_topology(STAGES, without(VERDICTS))


def test_doubles_of_any_kind_are_told() -> None:
    with pytest.raises(ConfigError, match="stage sampler: expected once, got 2 times"):
        check_topology((*STAGES, SAMPLER))
    twin = msgspec.structs.replace(GROUPS, name="groups-too")
    with pytest.raises(ConfigError, match="topic record Group: expected once, got 2 times"):
        check_topology(STAGES, (*TOPICS, twin))
    with pytest.raises(ConfigError, match="stage gatherer: input verdicts: expected once, got 2 times"):
        check_topology(replaced(GATHERER, inputs=(*GATHERER.inputs, VERDICTS)))


def test_inputs_that_are_partitioned_apart_are_told() -> None:
    stages = replaced(GATHERER, inputs=(*GATHERER.inputs, POLICY_VERSIONS))
    with pytest.raises(
        ConfigError, match="stage gatherer: expected inputs with one number of partitions, got rollout-requests"
    ):
        check_topology(stages)


def test_a_stage_that_holds_groups_needs_grouped_input() -> None:
    with pytest.raises(ConfigError, match="stage grader: expected inputs keyed by group_id, got policy-versions"):
        check_topology(replaced(GRADER, inputs=(POLICY_VERSIONS,)))


def test_a_table_must_be_compacted() -> None:
    stages = replaced(SAMPLER, tables=(OUTCOMES, POLICY_VERSIONS, VERDICTS))
    with pytest.raises(ConfigError, match="stage sampler: expected a compacted topic as a table, got verdicts kept by time"):
        check_topology(stages)


def test_sources_read_no_input_and_transforms_exactly_one() -> None:
    with pytest.raises(ConfigError, match="stage sampler: expected a source without inputs, got verdicts"):
        check_topology(replaced(SAMPLER, inputs=(VERDICTS,)))
    with pytest.raises(ConfigError, match="effect stage verifier: expected one input, got 2"):
        check_topology(replaced(VERIFIER, inputs=(*VERIFIER.inputs, VERDICTS)))


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check_topology(replaced(VERIFIER, outputs=()), without(GROUPS))
    assert len(str(caught.value).splitlines()) >= 3


def test_the_drawing_labels_every_stage_and_topic_once() -> None:
    drawing = draw()
    assert all(drawing.count(f"{stage.table}[{stage.name}]") == 1 for stage in STAGES)
    assert all(drawing.count(f"([{topic.name}])") == 1 for topic in TOPICS if topic is not DEAD_LETTERS)
    assert DEAD_LETTERS.name not in drawing


def test_the_drawing_leads_from_inputs_to_outputs_and_dots_what_is_looked_up() -> None:
    edges = [re.sub(r"[(\[]+[a-z-]+[)\]]+", "", line.strip()) for line in draw().splitlines()]
    assert "t_rollout_requests & t_verdicts --> gatherer --> t_groups & t_outcomes" in edges
    assert "t_outcomes & t_policy_versions & t_trajectory_tokens -.-> learner" in edges


def test_the_readme_holds_the_drawing_as_it_is_printed() -> None:
    readme = Path(__file__).parents[2] / "README.md"
    assert readme_block() in readme.read_text(encoding="utf-8"), "put the output of `gagar topics graph` into README.md"


def test_topics_are_read_after_those_that_their_records_follow_from() -> None:
    order = [topic.name for topic in upstream_first()]
    assert sorted(order) == sorted(topic.name for topic in TOPICS)
    for stage in STAGES:
        sources = [order.index(topic.name) for topic in (*stage.inputs, *stage.references)]
        assert max(sources, default=-1) < max(order.index(topic.name) for topic in stage.outputs)
    after = [("trajectory-tokens", "trajectories"), ("policy-versions", "outcomes"), ("outcomes", "dead-letters")]
    assert all(order.index(first) < order.index(then) for first, then in after)
