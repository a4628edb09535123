"""Groups are chosen by task, by time and by step."""

from gagar.history.choosing import groups_between
from gagar.history.steps import read_step
from gagar.records import LineageEntry
from tests.builders import make_outcome, make_request, make_version
from tests.logs import append, empty_log, lay, transport_of
from topology.topics import TOPICS


async def test_groups_are_those_requested_in_a_span_of_time() -> None:
    log = empty_log()
    for i in range(9):
        append(log, make_request(f"t-{i}"), at=1000.0 + i)
        append(log, make_request(f"t-{i}", sample_index=1), at=1000.0 + i)
    assert sorted(await groups_between(transport_of(log), TOPICS, 1003.0, 1005.0)) == ["t-3", "t-4"]
    assert len(await groups_between(transport_of(log), TOPICS)) == 9


async def test_groups_are_those_of_a_task() -> None:
    log = empty_log()
    for i in range(6):
        append(log, make_request(f"t-{i}", task_id=f"task-{i % 2}"))
    assert sorted(await groups_between(transport_of(log), TOPICS, task_id="task-1")) == ["t-1", "t-3", "t-5"]


async def test_a_step_has_the_outcomes_of_the_surviving_lineage() -> None:
    log = empty_log()
    went_on = make_version(2, "b", lineage=[LineageEntry(run_id="a", last_step=1)])
    outcomes = [
        make_outcome("t-0", run_id="a", step=2),
        make_outcome("t-1", run_id="b", step=2),
        make_outcome("t-2", run_id="b", step=3),
        make_outcome("t-3", kind="dropped", reason="stale", run_id="b", step=2),
        make_outcome("e-2-0", kind="evaluated", step=2),
    ]
    lay(log, [*(make_version(step) for step in range(3)), went_on, *outcomes])
    found = (await read_step(transport_of(log), TOPICS, 2)).outcomes
    assert sorted(outcome.record.group_id for outcome in found) == ["t-1", "t-3"]
