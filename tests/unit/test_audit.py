"""The audit: a whole run is clean, and each planted violation is found."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from consumers.advantage_publisher import Config, assign_advantages
from gagar.audit import MAX_FINDINGS, Audit, AuditReport, Ranges
from gagar.grading.rules import rank
from gagar.grouping import Gather
from gagar.records import (
    DeadLetter,
    GradedGroup,
    Group,
    GroupAdvantages,
    LineageEntry,
    Outcome,
    PatchMeasures,
    PolicyVersion,
    RolloutRequest,
    Verdict,
)
from tests.builders import (
    CLEAN,
    NEEDLESS,
    OUTSIDE,
    make_delivery,
    make_outcome,
    make_ref,
    make_request,
    make_verdict,
    make_version,
)

Records = list[Any]
RANGES: Ranges = {(topic, 0): (0, 100) for topic in ("rollout-requests", "trajectories", "trajectory-tokens")}


def way_of(group_id: str, members: Sequence[PatchMeasures | None]) -> Records:
    """Every record of a group from its requests on, made by the stages' own functions; trained at step 1 of run a."""
    requests = [make_request(group_id, i, group_size=len(members)) for i in range(len(members))]
    verdicts = [
        make_verdict(group_id, i, "passed" if m else "failed", measures=m or PatchMeasures()) for i, m in enumerate(members)
    ]
    gather = Gather(0.0)
    state = gather.start(group_id)
    answers = [gather.apply(state, make_delivery(record), 0.0) for record in (*requests, *verdicts)]
    [end] = answers[-1].outputs
    if not isinstance(end, Group):
        return [*requests, *verdicts, end]
    graded = GradedGroup(group=end, grader="rules/1", grades=rank(end, 3))
    [advantages] = assign_advantages(graded, Config())
    return [*requests, *verdicts, end, graded, advantages, make_outcome(group_id, "trained")]


def make_run() -> Records:
    """Two trained groups (one capped), one dropped, one evaluated; ended as planned at step 1."""
    return [
        make_version(0),
        *way_of("t-000000", [CLEAN, NEEDLESS, None, None]),
        *way_of("t-000001", [CLEAN, OUTSIDE, OUTSIDE, None]),
        *way_of("t-000002", [None, None, None, None]),
        *way_of("e-000001-0000", [CLEAN, CLEAN, OUTSIDE, None]),
        make_version(1, is_last=True),
    ]


def audited(records: Records, ranges: Ranges | None = RANGES, **options: bool) -> AuditReport:
    audit = Audit()
    for offset, record in enumerate(records):
        audit.apply(make_delivery(record, offset=offset))
    return audit.report(ranges, **options)


def changed(records: Records, record_type: type, change: Callable[[Any], Any], place: int = 0) -> Records:
    """The records with one of a type replaced by what `change` makes of it (a list: by all of these)."""
    index = [i for i, record in enumerate(records) if isinstance(record, record_type)][place]
    made = change(records[index])
    return [*records[:index], *(made if isinstance(made, list) else [made]), *records[index + 1 :]]


def member_changed(advantages: GroupAdvantages, place: int, **fields: Any) -> GroupAdvantages:
    members = list(advantages.members)
    members[place] = replace(members[place], **fields)
    return replace(advantages, members=members)


def twice(record: Any) -> list[Any]:
    return [record, record]


def test_a_whole_run_is_clean_and_counted() -> None:
    report = audited(make_run())
    assert report.findings == []
    assert report.is_clean
    assert (report.num_requested, report.num_trained, report.num_evaluated, report.dropped) == (4, 2, 1, {"all_failed": 1})
    assert (report.num_in_flight, report.num_superseded, report.num_capped, report.num_fallback) == (0, 0, 1, 0)
    assert (report.policy_version, report.is_ended) == (1, True)


def test_rounds_hold_pass_rates_and_clean_shares() -> None:
    stats = audited([*make_run(), *way_of("e-000001-0001", [CLEAN, None, None, None])]).rounds[0]
    assert (stats.num_groups, stats.num_attempts, stats.num_valid, stats.num_passed, stats.num_clean) == (2, 8, 8, 4, 3)
    assert (stats.pass_rate, stats.clean_share) == (0.5, 0.75)


def test_nothing_at_all_is_clean() -> None:
    assert audited([]).is_clean


PLANTED: dict[str, tuple[Callable[[Records], Records], str]] = {
    "an outcome lost": (
        lambda run: changed(run, Outcome, lambda o: []),
        "in flight: expected no group at the planned end, got 1",
    ),
    "an outcome doubled": (
        lambda run: changed(run, Outcome, twice),
        "group t-000000: expected one outcome, got 2: trained by a at step 1, trained by a at step 1",
    ),
    "trained and dropped": (
        lambda run: [*run, make_outcome("t-000000", "dropped", reason="lost")],
        "group t-000000: expected one outcome, got 2",
    ),
    "an outcome without request": (
        lambda run: [*run, make_outcome("t-000009", "dropped", reason="lost")],
        "group t-000009: expected a request",
    ),
    "conservation": (
        lambda run: changed(run, Outcome, twice),
        "conservation: expected 4 requested groups, got 5 ended and 0 in flight",
    ),
    "a group without request": (
        lambda run: [*run, replace(run[9], group_id="t-000009")],
        "group t-000009: expected a request",
    ),
    "a request doubled": (
        lambda run: changed(run, RolloutRequest, twice),
        "group t-000000: expected one request of sample 0, got two",
    ),
    "a request missing": (
        lambda run: changed(run, RolloutRequest, lambda r: []),
        "group t-000000: expected 4 requests, got 3",
    ),
    "another size": (
        lambda run: changed(run, RolloutRequest, lambda r: replace(r, group_size=2), place=1),
        "group t-000000: expected requests of one size, got sample 1 of 2",
    ),
    "a verdict doubled": (
        lambda run: changed(run, Verdict, twice),
        "group t-000000: expected one verdict of sample 0, got two",
    ),
    "a verdict of no request": (
        lambda run: [*run, make_verdict("t-000000", 7)],
        "group t-000000: expected verdicts of requested samples only",
    ),
    "doubled on groups": (
        lambda run: changed(run, Group, twice),
        "group t-000000: expected it once on groups, got it 2 times",
    ),
    "doubled on graded-groups": (
        lambda run: changed(run, GradedGroup, twice),
        "group t-000000: expected it once on graded-groups, got it 2 times",
    ),
    "doubled on advantages": (
        lambda run: changed(run, GroupAdvantages, twice),
        "group t-000000: expected it once on advantages, got it 2 times",
    ),
    "graded from nowhere": (
        lambda run: changed(run, Group, lambda g: []),
        "group t-000000: expected it on groups before graded-groups",
    ),
    "advantages from nowhere": (
        lambda run: changed(run, GradedGroup, lambda g: []),
        "group t-000000: expected it on graded-groups before advantages",
    ),
    "trained without advantages": (
        lambda run: changed(run, GroupAdvantages, lambda g: []),
        "group t-000000: expected advantages of a trained group, got none",
    ),
    "dropped by the gatherer, but on groups": (
        lambda run: changed(run, Outcome, lambda o: make_outcome(o.group_id, "dropped", reason="all_failed")),
        "group t-000000: expected dropped all_failed to be its end, got it on groups as well",
    ),
    "an evaluation trained on": (
        lambda run: changed(run, Outcome, lambda o: make_outcome(o.group_id, "trained"), place=3),
        "group e-000001-0000: expected an end that fits its purpose",
    ),
    "dropped for no reason": (
        lambda run: changed(run, Outcome, lambda o: replace(o, reason=""), place=2),
        "outcome of t-000002: expected a reason of dropped groups only",
    ),
    "trained by nobody": (
        lambda run: changed(run, Outcome, lambda o: replace(o, run_id="")),
        "outcome of t-000000: expected run and step of a trained group",
    ),
    "more passed than valid": (
        lambda run: changed(run, Outcome, lambda o: replace(o, num_passed=9)),
        "outcome of t-000000: expected clean <= passed <= valid <= requested attempts",
    ),
    "the passing sum": (
        lambda run: changed(run, GroupAdvantages, lambda g: member_changed(g, 0, advantage=0.6)),
        "advantages of t-000000: expected a passing sum of 1.000000000",
    ),
    "the sum after recentring": (
        lambda run: changed(run, GroupAdvantages, lambda g: member_changed(g, 0, advantage=0.6), place=1),
        "advantages of t-000001: expected a sum of 0 after recentring",
    ),
    "relative weights": (
        lambda run: changed(
            run,
            GroupAdvantages,
            lambda g: member_changed(member_changed(g, 0, advantage=0.5), 1, advantage=0.5),
        ),
        "advantages of t-000000: passing member 0: expected advantage",
    ),
    "a failing member changed": (
        lambda run: changed(run, GroupAdvantages, lambda g: member_changed(g, 2, advantage=-0.4)),
        "advantages of t-000000: failing member 2: expected advantage -0.500000000, got -0.400000000",
    ),
    "the baseline": (
        lambda run: changed(run, GroupAdvantages, lambda g: member_changed(g, 2, grpo_advantage=-0.4)),
        "advantages of t-000000: member 2: expected grpo_advantage -0.500000000",
    ),
    "a weight": (
        lambda run: changed(run, GroupAdvantages, lambda g: member_changed(g, 3, weight=0.5)),
        "advantages of t-000000: member 3: expected weight 1, got 0.5",
    ),
    "a weight of zero": (
        lambda run: changed(run, GroupAdvantages, lambda g: member_changed(g, 0, weight=0.0)),
        r"advantages of t-000000: member 0: expected weight a factor in \(0, 1\], got 0.0",
    ),
    "a number that is none": (
        lambda run: changed(run, GroupAdvantages, lambda g: member_changed(g, 0, advantage=float("nan"))),
        "advantages of t-000000: expected finite numbers",
    ),
    "a member doubled": (
        lambda run: changed(run, GroupAdvantages, lambda g: replace(g, members=[g.members[0], *g.members])),
        "advantages of t-000000: expected members once each",
    ),
    "a shift of an uncapped group": (
        lambda run: changed(run, GroupAdvantages, lambda g: replace(g, shift=0.1)),
        "advantages of t-000000: expected no shift",
    ),
    "a uniform group": (
        lambda run: changed(run, GroupAdvantages, lambda g: replace(g, members=g.members[:2], num_valid=2)),
        "advantages of t-000000: expected passing and failing members, got 2 passing of 2 valid",
    ),
    "a reference past the end": (
        lambda run: changed(run, GroupAdvantages, lambda g: member_changed(g, 0, tokens=make_ref("trajectory-tokens", 100))),
        r"reference trajectory-tokens\[0\]@100: expected an offset in the log \[0, 100\)",
    ),
    "a reference to no log": (
        lambda run: changed(run, Verdict, lambda v: replace(v, trajectory=make_ref("trajectories", 1, partition=9))),
        r"reference trajectories\[9\]@1: expected an offset in the log \[0, 0\)",
    ),
    "a version again": (
        lambda run: changed(run, PolicyVersion, twice),
        "policy version a/0: expected one after version 0",
    ),
    "a version after the last": (
        lambda run: [*run, make_version(2)],
        "policy version a/2: expected none after version 1, the planned end",
    ),
    "another lineage in the same run": (
        lambda run: changed(run, PolicyVersion, lambda v: replace(v, lineage=[LineageEntry(run_id="z", last_step=0)]), place=1),
        r"policy version a/1: expected its run's lineage \[\], got \['z@0'\]",
    ),
    "a lineage that names its own run": (
        lambda run: [make_version(0, "b", lineage=[LineageEntry(run_id="b", last_step=0)]), *run],
        "policy version b/0: expected each run once in its lineage",
    ),
    "a lineage beyond its version": (
        lambda run: [make_version(1, "b", lineage=[LineageEntry(run_id="c", last_step=2)]), *run],
        r"policy version b/1: expected a lineage of ascending steps up to 1, got \[2\]",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    plant, message = PLANTED[name]
    report = audited(plant(make_run()))
    assert not report.is_clean
    with pytest.raises(AssertionError, match=message):
        raise AssertionError("\n".join(report.findings))


def test_superseded_outcomes_count_as_in_flight_until_the_group_is_trained_anew() -> None:
    run = changed(make_run(), PolicyVersion, lambda v: replace(v, is_last=False), place=1)
    back = [*run, make_version(0, "b", lineage=[LineageEntry(run_id="a", last_step=0)])]
    report = audited(back)
    assert report.findings == []
    assert (report.num_trained, report.num_in_flight, report.num_superseded) == (0, 2, 2)
    anew = [make_outcome(group_id, "trained", run_id="b", step=1) for group_id in ("t-000000", "t-000001")]
    report = audited([*back, *anew, make_version(1, "b", lineage=[LineageEntry(run_id="a", last_step=0)], is_last=True)])
    assert report.findings == []
    assert (report.num_trained, report.num_in_flight, report.num_superseded) == (2, 0, 2)


def test_a_stale_drop_of_an_abandoned_step_does_not_count_against_the_new_end() -> None:
    run = changed(make_run(), Outcome, lambda o: make_outcome(o.group_id, "dropped", reason="stale", run_id="a", step=1))
    run = changed(run, PolicyVersion, lambda v: replace(v, is_last=False), place=1)
    lineage = [LineageEntry(run_id="a", last_step=0)]
    report = audited(
        [*run, make_version(0, "b", lineage=lineage), *(make_outcome(f"t-{i:06d}", run_id="b", step=1) for i in (0, 1))]
    )
    assert report.findings == []
    assert report.dropped == {"all_failed": 1}


def test_groups_in_flight_are_no_finding_while_the_run_goes_on_or_if_allowed() -> None:
    run = changed(make_run(), Outcome, lambda o: [])
    assert not audited(run).is_clean
    assert audited(run, is_in_flight_allowed=True).is_clean
    going_on = changed(run, PolicyVersion, lambda v: replace(v, is_last=False), place=1)
    assert audited(going_on).is_clean
    assert audited(going_on).num_in_flight == 1


def test_references_are_not_checked_without_the_logs_ranges() -> None:
    run = changed(make_run(), Verdict, lambda v: replace(v, trajectory=make_ref("trajectories", 10**9)))
    assert audited(run, ranges=None).is_clean
    assert not audited(run).is_clean


def test_dead_letters_are_counted() -> None:
    letter = DeadLetter(stage="grader", source=make_ref("groups", 0), error="bad", key=b"", value=b"")
    assert audited([*make_run(), letter]).num_dead_letters == 1


def test_findings_are_bounded_and_the_rest_is_counted() -> None:
    report = audited([make_outcome(f"t-{i:06d}", "dropped", reason="lost") for i in range(MAX_FINDINGS + 5)], ranges=None)
    assert len(report.findings) == MAX_FINDINGS + 1
    assert report.findings[-1] == "and 6 more findings"


def test_a_report_does_not_disturb_the_fold() -> None:
    audit = Audit()
    for record in changed(make_run(), Outcome, lambda o: []):
        audit.apply(make_delivery(record))
    assert audit.report(RANGES) == audit.report(RANGES)
    audit.apply(make_delivery(make_outcome("t-000000")))
    assert audit.report(RANGES).is_clean
