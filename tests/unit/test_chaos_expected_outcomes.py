"""The expected of the chaos suite: pure, varied enough, and by the rules of the stream."""

from collections import Counter
from itertools import groupby

import pytest

from gagar.records import PatchMeasures, VerdictStatus
from gagar.stream.limits import RuntimeLimits
from tests.chaos.expected_outcomes import (
    EARLY_SHARE,
    KINDS,
    MIN_GROUPS,
    PER_KIND,
    End,
    ExpectedOutcome,
    ExpectedOutcomes,
    Kind,
    Letter,
    Member,
    Poison,
    num_padding,
)

NO_POISON = None
CLEAN = PatchMeasures(num_added_lines=1, num_files=1)


def members(*statuses: VerdictStatus) -> tuple[Member, ...]:
    return tuple(Member(status=status, num_sampled=0 if status == "invalid" else 10, measures=CLEAN) for status in statuses)


def outcome(
    *statuses: VerdictStatus, kind: Kind | None = NO_POISON, sample_index: int = -1, group_id: str = "t-000001"
) -> ExpectedOutcome:
    poison = Poison(kind=kind, sample_index=sample_index) if kind else None
    return ExpectedOutcome(group_id=group_id, members=members(*statuses), poison=poison)


def kind_of(name: str) -> Kind:
    [kind] = [kind for kind in KINDS if str(kind) == name]
    return kind


def test_a_seed_says_the_same_in_every_process_and_another_seed_says_otherwise() -> None:
    first, again, other = (list(ExpectedOutcomes(seed, MIN_GROUPS).all()) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert ExpectedOutcomes(1, MIN_GROUPS).of("t-000042") in first


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_padding_fills_the_last_step_and_changes_nothing_else(seed: int) -> None:
    padding = num_padding(seed, MIN_GROUPS, 64)
    padded = ExpectedOutcomes(seed, MIN_GROUPS + padding, padding)
    ends = [outcome.end.kind for outcome in padded.all()]
    assert 0 < padding < 64
    assert ends.count("trained") % 64 == 0
    assert ends[len(ends) - padding :] == ["trained"] * padding
    assert list(padded.all())[:-padding] == list(ExpectedOutcomes(seed, MIN_GROUPS).all())
    assert num_padding(seed, MIN_GROUPS, 1) == 0


def test_a_run_holds_every_way_to_end_and_every_kind_of_poison() -> None:
    expected = list(ExpectedOutcomes(1, 1000).all())
    ends = Counter((outcome.end.kind, outcome.end.reason) for outcome in expected)
    assert ends.keys() == {
        ("trained", ""),
        ("evaluated", ""),
        *(("dropped", reason) for reason in ("all_passed", "all_failed", "too_few_valid", "dead_letter", "lost")),
    }
    assert 0.55 < ends["trained", ""] / len(expected) < 0.75
    assert Counter(str(outcome.poison.kind) for outcome in expected if outcome.poison) == {
        str(kind): PER_KIND for kind in KINDS
    }


def test_poison_befalls_every_topic_that_a_stage_reads_and_every_stage_that_writes_dead_letters() -> None:
    from topology.stages import STAGES

    read = {topic.name for stage in STAGES for topic in stage.inputs}
    assert {kind.place for kind in KINDS if kind.act == "garbage"} == read
    assert {stage for kind in KINDS for stage in kind.rejected_by} == {stage.name for stage in STAGES if stage.inputs}


def rejections(stage: str, expected: ExpectedOutcomes) -> list[bool]:
    """Of the early groups in their order, whether the stage writes a dead letter for them."""
    indices = {int(group_id[2:]) for group_id, kind in expected.kinds.items() if stage in kind.rejected_by}
    return [index in indices for index in range(int(expected.num_groups * EARLY_SHARE))]


@pytest.mark.parametrize(("num_groups", "per_kind"), [(MIN_GROUPS, 2), (1000, 2), (1500, 3), (10_000, 20)])
def test_poison_grows_with_a_long_run_and_stops_no_stage(num_groups: int, per_kind: int) -> None:
    policy = RuntimeLimits()
    for seed in (1, 2, 3):
        expected = ExpectedOutcomes(seed, num_groups)
        assert Counter(map(str, expected.kinds.values())) == {str(kind): per_kind for kind in KINDS}
        for stage in {stage for kind in KINDS for stage in kind.rejected_by}:
            dead = rejections(stage, expected)
            in_a_row = max(len(list(run)) for is_dead, run in groupby(dead) if is_dead)
            together = max(sum(dead[start : start + policy.dead_share_of]) for start in range(len(dead)))
            # half the limits at most, as groups do not come in order
            assert in_a_row <= policy.max_dead_run / 2
            assert together <= policy.dead_share * policy.dead_share_of / 2


def test_poison_lies_early_and_befalls_valid_members_of_mixed_groups() -> None:
    expected = ExpectedOutcomes(3, 200)
    assert all(int(group_id[2:]) < 80 for group_id in expected.kinds)
    for each in map(expected.of, expected.kinds):
        assert each.poison is not None
        assert {member.status for member in each.members} == {"passed", "failed"}
        assert (each.poison.sample_index < 0) == (each.poison.kind.loses == "group")


def test_a_member_that_is_lost_leaves_the_others_to_decide() -> None:
    kind = kind_of("garbage verdicts")
    mixed = outcome("passed", "failed", "passed", "failed", kind=kind, sample_index=2)
    assert mixed.is_lossy
    assert mixed.end == End(kind="trained", num_requested=4, num_valid=3, num_passed=1, num_clean=1, num_sampled_tokens=30)
    assert mixed.letters == [Letter(stage="gatherer", group_id="t-000001", sample_index=2)]
    uniform = outcome("passed", "failed", "passed", "passed", kind=kind, sample_index=1)
    assert (uniform.end.kind, uniform.end.reason, uniform.end.num_valid) == ("dropped", "all_passed", 3)


def test_a_garbage_request_is_rejected_by_both_of_its_readers() -> None:
    found = outcome("passed", "failed", "passed", "failed", kind=kind_of("garbage rollout-requests"), sample_index=0).letters
    assert {letter.stage for letter in found} == {"rollout-worker", "gatherer"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.loses == "group"], ids=str)
def test_a_group_that_is_rejected_whole_ends_as_a_dead_letter_of_which_nothing_is_known(kind: Kind) -> None:
    whole = outcome("passed", "failed", "passed", "failed", kind=kind)
    assert whole.end == End(kind="dropped", reason="dead_letter")
    assert [letter.sample_index for letter in whole.letters] == [-1]


def test_unusable_tokens_lose_the_group_without_a_dead_letter() -> None:
    lost = outcome("passed", "failed", "passed", "failed", kind=kind_of("sentinel trajectory-tokens"), sample_index=0)
    assert (lost.end.kind, lost.end.reason, lost.letters) == ("dropped", "lost", [])


@pytest.mark.parametrize(
    ("statuses", "reason"),
    [
        (("passed", "invalid", "invalid", "invalid"), "too_few_valid"),
        (("passed", "passed", "passed", "invalid"), "all_passed"),
        (("failed", "failed", "failed", "failed"), "all_failed"),
    ],
)
def test_groups_that_are_not_mixed_are_dropped(statuses: tuple[VerdictStatus, ...], reason: str) -> None:
    assert outcome(*statuses).end.reason == reason


def test_an_evaluation_is_evaluated_however_it_went() -> None:
    assert outcome("failed", "failed", "invalid", "failed", group_id="e-000000-0001").end.kind == "evaluated"


def test_delays_are_mostly_moments_some_a_second_and_a_few_five() -> None:
    expected = ExpectedOutcomes(1, MIN_GROUPS)
    delays = [expected.delay_s("verifier", f"t-{index:06d}", sample) for index in range(500) for sample in range(4)]
    assert expected.delay_s("verifier", "t-000000", 0) == delays[0]
    assert 0.90 < sum(delay <= 0.05 for delay in delays) / len(delays) < 0.97
    assert {delay for delay in delays if delay > 0.05} == {1.0, 5.0}


def test_too_few_groups_for_all_the_poison_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 125 or more, got 124"):
        ExpectedOutcomes(1, 124)
