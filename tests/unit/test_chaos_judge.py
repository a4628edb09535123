"""The judgement of the chaos suite finds what it is there to find; the audit is left out, which has tests of its own."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gagar.records import DeadLetter, encode
from tests.builders import make_ref, make_request, make_verdict
from tests.chaos import judge
from tests.chaos.expected_outcomes import End, ExpectedOutcomes, Letter
from tests.chaos.facts import Facts, letter_of
from tests.chaos.judge import Judgement, differences
from tests.chaos.plan import Plan
from tests.chaos.poison import act_on, check_bug, garbage, swollen

SEED, NUM_GROUPS = 1, 125
EXPECTED = ExpectedOutcomes(SEED, NUM_GROUPS)


def make_plan() -> Plan:
    return Plan(
        servers="",
        name="fire",
        directory="",
        seed=SEED,
        num_groups=NUM_GROUPS,
        lossy_deadline_s=1.0,
        groups_per_s=1.0,
        started_at=0.0,
    )


def make_facts() -> Facts:
    """What must lie in the topics."""
    return Facts(
        ends={outcome.group_id: [outcome.end] for outcome in EXPECTED.all()},
        letters=Counter(letter for outcome in EXPECTED.all() for letter in outcome.letters),
    )


async def judged(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> Judgement:
    async def run_audit(run: Any) -> Any:
        return SimpleNamespace(findings=[])

    monkeypatch.setattr(judge, "run_audit", run_audit)
    return await judge.judge(make_plan(), facts)


def poisoned(name: str) -> str:
    """A group with that kind of poison."""
    return next(group_id for group_id, kind in EXPECTED.kinds.items() if str(kind) == name)


async def test_what_had_to_be_is_without_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await judged(make_facts(), monkeypatch)).faults == {}


async def test_a_lost_group_is_told_with_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = make_facts()
    del facts.ends["t-000124"]
    facts.reached["t-000124"] = "groups"
    assert (await judged(facts, monkeypatch)).faults == {"lost": ["t-000124: got as far as groups"]}


async def test_a_doubled_outcome_and_a_doubled_record_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = make_facts()
    facts.ends["t-000124"] *= 2
    facts.doubled.append("verdicts t-000004/1")
    assert (await judged(facts, monkeypatch)).faults == {"doubled": ["verdicts t-000004/1", "t-000124: 2 outcomes"]}


async def test_another_outcome_is_told_with_what_it_had_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = make_facts()
    facts.ends["t-000124"] = [End(kind="dropped", reason="stale")]
    [text] = (await judged(facts, monkeypatch)).different
    assert text == f"t-000124: expected {EXPECTED.of('t-000124').end}, got dropped stale 0(0)/0/0 tokens 0"


async def test_an_outcome_that_nobody_asked_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = make_facts()
    facts.ends["t-000125"] = [End(kind="trained")]
    assert (await judged(facts, monkeypatch)).faults == {"unasked": ["t-000125"]}


async def test_dead_letters_are_exactly_those_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = make_facts()
    missing, doubled, *_ = sorted(facts.letters)
    facts.letters[missing] -= 1
    facts.letters[doubled] += 1
    facts.letters[Letter(stage="grader", group_id="t-000123", sample_index=-1)] += 1
    faults = (await judged(facts, monkeypatch)).faults
    assert faults["letters_missing"] == [f"{missing.stage} {missing.group_id}/{missing.sample_index} x1"]
    beyond = [f"{doubled.stage} {doubled.group_id}/{doubled.sample_index} x1", "grader t-000123/-1 x1"]
    assert faults["letters_beyond"] == beyond


def test_runs_differ_by_outcomes_requests_and_advantages() -> None:
    calm, fire = make_facts(), make_facts()
    assert differences(calm, fire) == []
    calm.requests, fire.requests = {"t-000000/0": "a"}, {"t-000000/0": "b"}
    fire.advantages = {"t-000001": "c"}
    fire.ends["t-000002"] = []
    assert [text.split(":")[0] for text in differences(calm, fire)] == [
        "outcome of t-000002",
        "request of t-000000/0",
        "advantages of t-000001",
    ]


def make_letter(stage: str, group_id: str, topic: str, value: bytes) -> DeadLetter:
    return DeadLetter(stage=stage, source=make_ref(topic, 7), error="", key=group_id.encode(), value=value)


def test_a_dead_letter_is_known_by_the_record_that_it_holds_or_by_the_garbage() -> None:
    verdict = make_verdict("t-000124", 2)
    held = make_letter("gatherer", "t-000124", "verdicts", encode(verdict))
    spoilt = make_letter("gatherer", "t-000124", "verdicts", garbage(verdict))
    assert (
        letter_of(held, EXPECTED)
        == letter_of(spoilt, EXPECTED)
        == Letter(stage="gatherer", group_id="t-000124", sample_index=2)
    )


def test_whichever_input_stands_for_a_group_its_dead_letter_is_the_same() -> None:
    group_id = poisoned("oversized groups")
    letters = {
        letter_of(make_letter("gatherer", group_id, topic, value), EXPECTED)
        for topic, value in (("verdicts", encode(make_verdict(group_id, 1))), ("rollout-requests", b""))
    }
    assert letters == {Letter(stage="gatherer", group_id=group_id, sample_index=-1)}


def test_poison_befalls_its_own_record_only() -> None:
    group_id = poisoned("garbage rollout-requests")
    poison = EXPECTED.of(group_id).poison
    assert poison is not None
    hit = [act_on(EXPECTED, make_request(group_id, index)) for index in range(4)]
    assert hit == ["garbage" if index == poison.sample_index else "" for index in range(4)]
    assert act_on(EXPECTED, make_verdict(group_id, poison.sample_index)) == ""


def test_a_bug_is_there_at_each_try_and_with_no_other_record() -> None:
    group_id = poisoned("bug verifier")
    poison = EXPECTED.of(group_id).poison
    assert poison is not None
    for _ in range(2):
        with pytest.raises(Exception, match="got a bug"):
            check_bug(EXPECTED, "verifier", group_id, poison.sample_index)
    check_bug(EXPECTED, "rollout-worker", group_id, poison.sample_index)
    check_bug(EXPECTED, "verifier", group_id, (poison.sample_index + 1) % 4)


def test_a_swollen_record_is_larger_by_what_was_asked_for() -> None:
    verdict = make_verdict()
    assert len(encode(swollen(verdict, 5000))) - len(encode(verdict)) in range(5000, 5010)


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    import msgspec

    plan = msgspec.structs.replace(make_plan(), directory=str(tmp_path / "new"))
    assert Plan.read(plan.write()) == plan
