"""The last line of the demo: every promised key, from the evaluation rounds at the start and at the end."""

import msgspec

from gagar.records import Record
from gagar.report.progress import Progress, Snapshot
from gagar.report.summary import round_text, summarize, summary_rows
from tests.builders import make_delivery, make_outcome, make_request, make_version

PROMISED = [
    "steps",
    "groups_requested",
    "groups_trained",
    "groups_evaluated",
    "groups_dropped",
    "pass_rate_first",
    "pass_rate_last",
    "quality_first",
    "quality_last",
    "policy_version",
    "audit",
]


def snapshot_of(*records: Record) -> Snapshot:
    progress = Progress()
    for record in records:
        progress.apply(make_delivery(record, type(record).__name__))
    return progress.snapshot()


def finished() -> Snapshot:
    return snapshot_of(
        *(make_request(name) for name in ("e-0", "e-1", "t-0", "t-1")),
        make_version(0),
        make_outcome("e-0", "evaluated", step=0, num_passed=1, num_clean=0),
        make_outcome("t-0", "trained"),
        make_outcome("t-1", "dropped", reason="all_failed"),
        make_version(1, is_last=True),
        make_outcome("e-1", "evaluated", step=1, num_passed=3, num_clean=3),
    )


def test_the_last_line_has_the_promised_keys_first() -> None:
    line = msgspec.json.decode(msgspec.json.encode(summarize(finished(), "r", "clean", 3.21)))
    assert list(line)[: len(PROMISED)] == PROMISED
    assert {key: line[key] for key in PROMISED} == {
        "steps": 1,
        "groups_requested": 4,
        "groups_trained": 1,
        "groups_evaluated": 2,
        "groups_dropped": {"all_failed": 1},
        "pass_rate_first": 0.25,
        "pass_rate_last": 0.75,
        "quality_first": 0.0,
        "quality_last": 1.0,
        "policy_version": 1,
        "audit": "clean",
    }
    assert (line["run"], line["seconds"], line["attempts_first"], line["attempts_last"]) == ("r", 3.2, 4, 4)


def test_a_run_with_one_round_has_no_last_rate() -> None:
    summary = summarize(snapshot_of(make_outcome("e-0", "evaluated")), "r", "clean")
    assert (summary.pass_rate_first, summary.pass_rate_last, summary.quality_last) == (0.5, None, None)


def test_a_run_without_anything_has_a_summary() -> None:
    summary = summarize(snapshot_of(), "r", "clean")
    assert (summary.steps, summary.policy_version, summary.pass_rate_first) == (0, -1, None)
    assert b'"pass_rate_first":null' in msgspec.json.encode(summary)


def test_rounds_in_between_are_in_the_table_only() -> None:
    rounds = [make_outcome(f"e-{step}", "evaluated", step=step, num_passed=step) for step in (1, 2, 3)]
    snapshot = snapshot_of(*rounds)
    summary = summarize(snapshot, "r", "clean")
    assert (summary.pass_rate_first, summary.pass_rate_last) == (0.25, 0.75)
    labels = [label for label, _ in summary_rows(summary, snapshot.rounds)]
    assert [label for label in labels if label.startswith("held-out")] == [f"held-out tasks, step {s}" for s in (1, 2, 3)]


def test_the_table_tells_time_and_memory_where_they_are_known() -> None:
    summary = msgspec.structs.replace(summarize(finished(), "r", "clean", 61.0), peak_memory_bytes=3 << 30)
    rows = dict(summary_rows(summary, []))
    assert (rows["time"], rows["peak memory"], rows["groups dropped"]) == ("61 s", "3.0 GiB", "1 all_failed")
    assert "time" not in dict(summary_rows(summarize(snapshot_of(), "r", "clean"), []))


def test_a_round_is_told_with_its_error_and_its_size() -> None:
    (only,) = snapshot_of(make_outcome("e-0", "evaluated"), make_outcome("e-1", "evaluated", num_passed=4, num_clean=2)).rounds
    assert round_text(only) == "pass 0.75 +-0.25 of 8 attempts, clean 0.50 of passing"


def test_a_round_without_passing_or_valid_attempts_says_so() -> None:
    (none_passed,) = snapshot_of(make_outcome("e-0", "evaluated", num_passed=0, num_clean=0)).rounds
    (none_valid,) = snapshot_of(make_outcome("e-0", "evaluated", num_valid=0, num_passed=0, num_clean=0)).rounds
    assert round_text(none_passed) == "pass 0.00 +-0.00 of 4 attempts, nothing passed"
    assert round_text(none_valid) == "no valid attempt"
