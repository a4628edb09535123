"""Which steps survive when a learner goes back."""

from gagar.groups.lineage import Lineage
from gagar.records import LineageEntry
from tests.builders import make_version


def entries(**last_steps: int) -> list[LineageEntry]:
    return [LineageEntry(run_id=run_id, last_step=step) for run_id, step in last_steps.items()]


def test_nothing_of_a_learner_counts_before_a_version_is_known() -> None:
    lineage = Lineage()
    assert not lineage.survives("a", 0)
    assert lineage.newest is None


def test_all_steps_of_the_newest_run_survive() -> None:
    lineage = Lineage()
    assert lineage.observe(make_version(0, "a"))
    assert not lineage.observe(make_version(1, "a"))
    assert lineage.survives("a", 1)
    assert lineage.survives("a", 2)
    assert lineage.newest == make_version(1, "a")


def test_steps_after_the_checkpoint_that_a_new_run_started_from_are_superseded() -> None:
    lineage = Lineage()
    lineage.observe(make_version(9, "a"))
    assert lineage.observe(make_version(6, "b", lineage=entries(a=6)))
    assert [lineage.survives("a", step) for step in (6, 7)] == [True, False]
    assert lineage.survives("b", 7)
    assert not lineage.survives("c", 1)


def test_a_run_that_the_newest_one_does_not_continue_is_superseded_whole() -> None:
    lineage = Lineage()
    lineage.observe(make_version(0, "a"))
    lineage.observe(make_version(0, "b"))
    assert not lineage.survives("a", 0)


def test_a_late_version_of_a_replaced_learner_changes_nothing() -> None:
    lineage = Lineage()
    lineage.observe(make_version(6, "b", lineage=entries(a=6)))
    assert not lineage.observe(make_version(9, "a"))
    assert lineage.newest == make_version(6, "b", lineage=entries(a=6))
