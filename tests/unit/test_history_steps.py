"""Histories of steps, versions and tasks count what survives, and say what was superseded or removed."""

from gagar.history.steps import read_step, read_task, read_version
from gagar.records import LineageEntry
from gagar.stream.transport import Send
from tests.builders import make_outcome, make_request, make_version
from tests.logs import append, empty_log, lay, transport_of
from topology.topics import TOPICS


async def test_a_step_made_twice_shows_both_versions_and_the_outcomes_that_count() -> None:
    log = empty_log()
    again = [make_version(step, "b", lineage=[LineageEntry(run_id="a", last_step=1)]) for step in (1, 2)]
    lay(log, [*(make_version(step) for step in range(3)), *again])
    append(log, make_outcome("t-0", run_id="a", step=2))
    append(log, make_outcome("t-1", run_id="b", step=2))
    history = await read_step(transport_of(log), TOPICS, 2)
    assert [(version.record.run_id, version.survives) for version in history.versions] == [("a", False), ("b", True)]
    assert [outcome.record.group_id for outcome in history.outcomes] == ["t-1"]
    assert history.has_ended
    assert not (await read_step(transport_of(log), TOPICS, 3)).has_ended


async def test_of_versions_with_one_number_the_surviving_one_is_meant_unless_its_run_is_named() -> None:
    log = empty_log()
    again = make_version(2, "b", lineage=[LineageEntry(run_id="a", last_step=1)])
    lay(log, [*(make_version(step) for step in range(3)), again])
    by_number = await read_version(transport_of(log), TOPICS, "2")
    by_run = await read_version(transport_of(log), TOPICS, "a/2")
    assert by_number is not None
    assert by_run is not None
    assert (by_number.version.record.run_id, by_run.version.record.run_id) == ("b", "a")
    assert [entry.run_id for entry in by_number.lineage] == ["a"]
    assert await read_version(transport_of(log), TOPICS, "c/2") is None


async def test_a_version_whose_weights_were_removed_says_so_and_a_record_nobody_can_read_is_passed_over() -> None:
    log = empty_log()
    append(log, make_version(1))
    log.append(Send(topic="policy-versions", key=b"a/1", value=None), at=1.0)
    log.append(Send(topic="policy-versions", key=b"a/9", value=b"\xc1"), at=1.0)
    history = await read_version(transport_of(log), TOPICS, "1")
    assert history is not None
    assert not history.version.has_weights


async def test_a_version_counts_the_groups_that_it_may_have_sampled() -> None:
    log = empty_log()
    append(log, make_version(4))
    for index, span in enumerate([(3, 3), (3, 4), (4, 9), (5, 9)]):
        append(log, make_outcome(f"t-{index}", policy_version_min=span[0], policy_version_max=span[1]))
    history = await read_version(transport_of(log), TOPICS, "4")
    assert history is not None
    assert history.num_sampled == 2


async def test_a_task_lists_its_groups_in_the_order_of_requests_and_leaves_superseded_ends_out() -> None:
    log = empty_log()
    append(log, make_version(1))
    for index in (2, 0, 1):
        append(log, make_request(f"t-{index}", task_id="x"), at=1000.0 + index)
        append(log, make_request(f"t-{index}", 1, task_id="x"), at=1000.0 + index)
    append(log, make_request("t-7", task_id="y"))
    append(log, make_outcome("t-0", kind="dropped", reason="lost"))
    append(log, make_outcome("t-1", run_id="gone", step=5))
    history = await read_task(transport_of(log), TOPICS, "x")
    assert [group.group_id for group in history.groups] == ["t-0", "t-1", "t-2"]
    assert [group.outcome is not None for group in history.groups] == [True, False, False]
