"""The audit's fold: a whole run is clean, each planted violation is found, and what retention took is not held against it."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import gagar
from gagar.audit.findings import MAX_TEXTS, Finding, Law
from gagar.audit.fold import OVERDUE_MARGIN_S, Audit, AuditTerms
from gagar.audit.references import Claim, ClaimSample, Ranges, broken_claims
from gagar.audit.result import AuditResult
from gagar.audit.trails import Trails
from gagar.errors import BadRecordError
from gagar.records import (
    DeadLetter,
    LineageEntry,
    LogRef,
    Outcome,
    PolicyVersion,
    RolloutRequest,
    Trajectory,
    TrajectoryTokens,
    Verdict,
)
from tests.audit_runs import (
    IN_PLACES,
    IN_RUN,
    IN_TOPICS,
    IN_VERSIONS,
    IN_WAY,
    STEPS,
    TOPIC_OF,
    Records,
    astray,
    changed,
    edited,
    laid_out,
    make_run,
    until,
    violated,
    way_of,
    without,
)
from tests.builders import CLEAN, make_delivery, make_outcome, make_ref, make_request, make_version

TERMS = AuditTerms(max_staleness=2, grace_s=30.0)
DUE = 1600.0 + TERMS.grace_s + OVERDUE_MARGIN_S
"""When a group of the builders must have come further."""
A0 = [LineageEntry(run_id="a", last_step=0)]


def ranges_of(records: Records, cut: Mapping[str, int] | None = None) -> Ranges:
    """Where the logs begin (at 0, or as `cut` says) and end."""
    counts = {topic: sum(type(record) is record_type for record in records) for record_type, topic in TOPIC_OF.items()}
    return {(topic, 0): ((cut or {}).get(topic, 0), count) for topic, count in counts.items()}


def folded(records: Records, terms: AuditTerms = TERMS, cut: Mapping[str, int] | None = None) -> Audit:
    """An audit of records, without those that lie before the beginning of their log."""
    ranges = ranges_of(records, cut)
    audit = Audit(terms, ranges)
    for delivery in laid_out(records):
        if delivery.ref.offset >= ranges[delivery.ref.topic, 0][0]:
            audit.apply(delivery)
    return audit


def audited(records: Records, terms: AuditTerms = TERMS, cut: Mapping[str, int] | None = None) -> AuditResult:
    return folded(records, terms, cut).result()


def make_letter(at: float) -> Any:
    """A dead letter of that time."""
    letter = DeadLetter(stage="grader", source=make_ref("groups", 0), error="bad", key=b"", value=b"")
    return make_delivery(letter, at=at)


def test_a_whole_run_is_clean_and_counted() -> None:
    report = audited(make_run())
    assert report.findings == []
    assert report.is_clean
    assert (report.num_requested, report.num_trained, report.num_evaluated, report.dropped) == (4, 2, 1, {"all_failed": 1})
    assert (report.num_in_flight, report.num_superseded, report.num_capped, report.num_fallback) == (0, 0, 1, 0)
    assert (report.policy_version, report.is_ended, report.num_retired) == (1, True, 0)
    assert (report.num_references, report.num_retired_references, report.num_followed) == (152, 0, 32)


def test_rounds_hold_pass_rates_and_clean_shares() -> None:
    stats = audited([*make_run(), *way_of("e-000001-0001", [CLEAN, None, None, None])]).rounds[0]
    assert (stats.num_groups, stats.num_attempts, stats.num_valid, stats.num_passed, stats.num_clean) == (2, 8, 8, 4, 3)
    assert (stats.pass_rate, stats.quality) == (0.5, 0.75)


def test_nothing_at_all_is_clean() -> None:
    assert audited([]).is_clean


def test_every_law_is_broken_by_some_planted_violation() -> None:
    assert {*IN_WAY, *IN_VERSIONS, *IN_RUN, *IN_PLACES, *IN_TOPICS} == set(Law)


def test_each_law_is_told_in_one_place() -> None:
    """So that who has seen every law broken has seen every text."""
    places: list[str] = []
    for path in (Path(gagar.__file__).parent / "audit").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                places += [
                    arg.attr for arg in node.args[:1] if isinstance(arg, ast.Attribute) and ast.unparse(arg.value) == "Law"
                ]
    assert sorted(places) == sorted(law.name for law in Law)


@pytest.mark.parametrize("law", IN_WAY)
def test_what_is_done_to_a_group_is_found(law: Law) -> None:
    plant, text = IN_WAY[law]
    records = [*STEPS, *way_of("t-000000"), *plant(way_of("t-000001"))]
    audit = folded(records)
    audit.apply(make_letter(DUE + 1))
    report = audit.result()
    expected = text.format(id="t-000001", end=8)
    assert [finding for finding in report.findings if expected in finding], report.findings
    assert law in report.broken


@pytest.mark.parametrize("law", IN_VERSIONS)
def test_what_is_done_to_versions_is_found(law: Law) -> None:
    versions, text = IN_VERSIONS[law]
    report = audited([make_version(0), make_version(1), make_version(2), *versions])
    assert text in report.findings
    assert law in report.broken


def test_violations_side_by_side_are_all_found() -> None:
    records, told = violated()
    audit = folded(records)
    audit.apply(make_letter(DUE + 1))
    report = audit.result()
    num_trajectories = ranges_of(records)["trajectories", 0][1]
    for law, text in told.items():
        expected = text.replace("{end}", str(num_trajectories))
        assert [finding for finding in report.findings if expected in finding], law
    assert not [finding for finding in report.findings if "t-000000" in finding]


def test_superseded_outcomes_count_as_in_flight_until_the_group_is_trained_anew() -> None:
    run = edited(PolicyVersion, 1, is_last=False)(make_run())
    back = [*run, make_version(0, "b", lineage=A0)]
    report = audited(back)
    assert report.findings == []
    assert (report.num_trained, report.num_in_flight, report.num_superseded) == (0, 2, 2)
    anew = [make_outcome(group_id, "trained", run_id="b", step=1) for group_id in ("t-000000", "t-000001")]
    report = audited([*back, *anew, make_version(1, "b", lineage=A0, is_last=True)])
    assert report.findings == []
    assert (report.num_trained, report.num_in_flight, report.num_superseded) == (2, 0, 2)


def test_a_stale_drop_of_an_abandoned_step_does_not_count_against_the_new_end() -> None:
    run = [record for record in make_run() if getattr(record, "kind", "") != "trained"]
    run = edited(PolicyVersion, 1, is_last=False)(run)
    stale = [make_outcome(f"t-{i:06d}", "dropped", reason="stale", run_id="a", step=1) for i in (0, 1)]
    anew = [make_outcome(f"t-{i:06d}", run_id="b", step=1) for i in (0, 1)]
    report = audited([*run, *stale, *anew, make_version(0, "b", lineage=A0), make_version(1, "b", lineage=A0)])
    assert report.findings == []
    assert report.dropped == {"all_failed": 1}


def test_groups_in_flight_are_no_finding_while_the_run_goes_on_or_if_allowed() -> None:
    run = without(Outcome)(make_run())
    assert audited(run).findings == [
        "in flight: expected no group at the planned end, got 1; wait until the run has ended",
    ]
    assert folded(run).result(is_in_flight_allowed=True).is_clean
    going_on = edited(PolicyVersion, 1, is_last=False)(run)
    assert audited(going_on).is_clean
    assert audited(going_on).num_in_flight == 1


@pytest.mark.parametrize(
    ("reached", "is_finding"), [("rollout-requests", True), ("verdicts", True), ("groups", True), ("advantages", False)]
)
def test_overdue_groups_are_told_with_where_they_stand_by_the_newest_record(reached: str, is_finding: bool) -> None:
    last = next(record_type for record_type, topic in TOPIC_OF.items() if topic == reached)
    audit = folded([make_version(0), *until(last)(way_of("t-000000"))])
    audit.apply(make_letter(DUE))
    assert audit.result().overdue == {}
    audit.apply(make_letter(DUE + 5))
    report = audit.result()
    assert report.overdue == {reached: 1}
    expected = [f"group t-000000: expected an end 5 s ago, got none; it stands on {reached}"] if is_finding else []
    assert report.findings == expected


def test_while_a_stage_is_at_work_a_run_that_has_stalled_is_overdue_by_the_clock() -> None:
    stalled = [make_version(0), *until(Verdict)(way_of("t-000000"))]
    assert (audited(stalled).findings, audited(stalled).is_at_work) == ([], False)
    report = audited(stalled, replace(TERMS, now=DUE + 5))
    expected = ["group t-000000: expected an end 5 s ago, got none; it stands on verdicts"]
    assert (report.findings, report.is_at_work) == (expected, True)
    assert audited(stalled, replace(TERMS, now=DUE)).findings == []


def test_a_request_that_never_got_a_trajectory_is_found_though_its_group_has_ended() -> None:
    """One that a stage could not read, or its trajectory, has a dead letter instead; what retention has taken is not missed."""
    lost = [make_version(0), *way_of("t-000000", [None] * 4)]
    lost = [record for record in lost if getattr(record, "sample_index", 0) != 3 or isinstance(record, RolloutRequest)]
    terms = replace(TERMS, now=DUE + 1)
    text = "group t-000000: expected a trajectory of each request by now, got none of samples [3]"
    assert audited(lost, terms).findings == [text]
    assert audited(lost, replace(terms, now=DUE)).findings == []
    assert audited(lost, terms, cut={"trajectories": 1}).findings == []
    for topic in ("rollout-requests", "trajectories"):
        audit = folded(lost, terms)
        letter = DeadLetter(stage="one", source=make_ref(topic, 3), error="bad", key=b"t-000000", value=b"")
        audit.apply(make_delivery(letter))
        assert audit.result().findings == []


def test_references_are_not_checked_without_the_logs_ranges() -> None:
    audit = Audit(TERMS)
    for delivery in laid_out(edited(Verdict, trajectory=make_ref("trajectories", 10**9))(make_run())):
        audit.apply(delivery)
    report = audit.result()
    assert (set(report.broken), report.num_references, report.num_followed) == ({Law.TRAJECTORY_REFERENCE.value}, 0, 0)


def test_a_reference_to_what_retention_has_taken_is_counted_and_a_negative_one_is_found() -> None:
    report = audited(make_run(), cut={"trajectories": 8})
    assert (report.findings, report.num_retired_references) == ([], 32)
    report = audited(edited(Verdict, trajectory=make_ref("trajectories", -1))(make_run()), cut={"trajectories": 8})
    assert report.broken == {"reference in log": 1}


def test_a_group_whose_requests_are_gone_is_told_so_and_in_no_other_count() -> None:
    report = audited(make_run(), cut={"rollout-requests": 4})
    assert report.findings == []
    assert (report.num_retired, report.num_requested, report.num_trained) == (1, 3, 1)
    report = audited(make_run(), cut={"rollout-requests": 6})  # a segment may end within the requests of a group
    assert report.findings == []
    assert (report.num_retired, report.num_requested, report.num_trained) == (2, 2, 0)


def test_a_request_that_is_missing_in_the_middle_is_not_retentions_doing() -> None:
    requests = [record for record in make_run() if isinstance(record, RolloutRequest) and record.group_id == "t-000002"]
    report = audited([record for record in make_run() if record != requests[2]], cut={"rollout-requests": 4})
    assert "group t-000002: expected 4 requests, got 3" in report.findings


def test_a_log_that_has_lost_its_beginning_explains_what_is_not_on_it() -> None:
    cut = {"verdicts": 16, "groups": 2, "graded-groups": 2, "advantages": 2}
    assert audited(make_run(), cut=cut).findings == []


def test_versions_that_were_removed_are_not_missed() -> None:
    lineage = [LineageEntry(run_id="z", last_step=3)]
    audit = Audit(TERMS)
    for record in (way for way in way_of("t-000000") if not isinstance(way, Outcome)):
        audit.apply(make_delivery(record))
    audit.apply(make_delivery(make_outcome("t-000000", run_id="z", step=2, staleness=1)))
    audit.apply(make_delivery(make_version(5, "b", lineage=lineage), offset=9))
    audit.apply(make_delivery(make_version(6, "b", lineage=lineage), offset=10))
    report = audit.result()
    assert (report.findings, report.num_trained) == ([], 1)


def test_groups_requested_earlier_are_left_out_with_all_that_is_theirs() -> None:
    early = [make_request("t-000009", i) for i in range(4)]
    rest = [record for record in way_of("t-000008") if not isinstance(record, RolloutRequest)]
    doubled = [make_outcome("t-000009", "dropped", reason="lost")] * 2
    evaluated = [make_outcome("e-000000-0009", "evaluated")]
    records = [*make_run(), *early, *rest, *doubled, *evaluated]
    assert not audited(records).is_clean
    audit = Audit(AuditTerms(max_staleness=2, since=1000.0), ranges_of(records))
    for delivery in laid_out(records):
        is_early = delivery.record in early
        audit.apply(replace(delivery, at=999.0) if is_early else delivery)
    report = audit.result()
    assert report.findings == []
    assert (report.num_requested, report.num_trained, report.rounds[0].num_groups) == (4, 2, 1)


def test_dead_letters_are_counted() -> None:
    audit = Audit(AuditTerms(since=100.0))
    audit.apply(make_letter(99.0))
    audit.apply(make_letter(100.0))
    assert audit.result().num_dead_letters == 1


def test_a_request_that_nobody_can_read_counts_as_one_by_its_dead_letters() -> None:
    audit = Audit(TERMS)
    for offset in (0, 1, 3):
        audit.apply(make_delivery(make_request("t-000000", offset), "rollout-requests", offset))
    audit.apply(make_delivery(make_outcome("t-000000", "dropped", reason="all_failed"), "outcomes"))
    assert audit.result().findings == ["group t-000000: expected 4 requests, got 3"]
    for stage in ("rollout-worker", "gatherer"):
        source = make_ref("rollout-requests", 2)
        audit.apply(make_delivery(DeadLetter(stage=stage, source=source, error="no record", key=b"t-000000", value=b"")))
    assert audit.result().findings == []


def test_findings_of_one_law_are_bounded_and_hide_no_other() -> None:
    lost = [make_outcome(f"t-{i:06d}", "dropped", reason="lost") for i in range(MAX_TEXTS + 5)]
    report = audited(lost)
    assert len(report.findings) == MAX_TEXTS + 2
    assert report.findings[MAX_TEXTS] == "requested: and 5 more"
    assert report.broken == {"requested": MAX_TEXTS + 5, "conservation": 1}


def test_a_report_does_not_disturb_the_fold() -> None:
    audit = folded(without(Outcome)(make_run()))
    assert audit.result() == audit.result()
    audit.apply(make_delivery(make_outcome("t-000000")))
    assert audit.result().is_clean


def test_memory_holds_a_bounded_number_of_groups_and_the_report_is_the_same() -> None:
    records = [*STEPS, *(record for i in range(100) for record in way_of(f"t-{i:06d}"))]
    trails = Trails(max_recent=8)
    ranges = ranges_of(records)
    audit = Audit(TERMS, ranges, trails)
    most = 0
    for delivery in laid_out(records):
        audit.apply(delivery)
        most = max(most, trails.num_resident)
    assert most == 8
    assert audit.result() == audited(records)
    assert audit.result().num_trained == 100


class Places:
    """References over records that are laid out."""

    def __init__(self, records: Records, gone: LogRef | None = None) -> None:
        self._records = {delivery.ref: delivery.record for delivery in laid_out(records)}
        self._gone = gone

    async def read(self, refs: Sequence[LogRef], record_type: type[Any], /) -> list[Any]:
        if self._gone in refs:
            raise BadRecordError(f"{self._gone}: expected a record, got none there")
        return [self._records[ref] for ref in refs]


async def followed(records: Records, gone: LogRef | None = None) -> list[tuple[Claim, Finding]]:
    types: dict[str, type[Any]] = {"trajectories": Trajectory, "trajectory-tokens": TrajectoryTokens}
    return [pair async for pair in broken_claims(folded(records).claims(), Places(records, gone), types)]


async def test_references_are_followed_to_records_of_the_same_attempt() -> None:
    assert await followed(make_run()) == []
    [(claim, finding)] = await followed(changed(Verdict, astray)(way_of("t-000001")))
    assert (claim.ref, claim.group_id, claim.sample_index) == (make_ref("trajectories", 1), "t-000001", 0)
    assert finding.law is Law.REFERENCE_TO_OWN
    assert IN_PLACES[Law.REFERENCE_TO_OWN].format(id="t-000001") in finding.text


async def test_a_reference_to_a_place_without_a_record_is_found() -> None:
    [(claim, finding)] = await followed(make_run(), make_ref("trajectory-tokens", 5))
    expected = "sample 1 of group t-000001: trajectory-tokens[0]@5: expected a record, got none there"
    assert (claim.ref.offset, finding) == (5, Finding(Law.REFERENCE_TO_RECORD, expected))


@given(st.permutations(range(40)))
def test_the_sample_does_not_depend_on_the_order_nor_on_repetition(order: list[int]) -> None:
    claims = [Claim(make_ref("trajectories", number), f"t-{number:06d}", 0) for number in range(40)]
    one, other = ClaimSample(8), ClaimSample(8)
    for claim in claims:
        one.offer(claim)
    for number in [*order, *order]:
        other.offer(claims[number])
    assert one.claims() == other.claims()
    assert len(one.claims()) == 8
