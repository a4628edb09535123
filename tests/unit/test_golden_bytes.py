"""Records on topics outlive releases: the committed bytes of each record version must read as they did when they were written.

A record type without a file gets one from its sample below when the test runs, and the test fails until that is committed.
Never change a file that has been released: add a defaulted field to the record, and a new sample beside the old one.
"""

from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from gagar import records
from gagar.arrays import Tensor
from gagar.records import (
    AttemptFacts,
    AttemptTimes,
    DeadLetter,
    Grade,
    GradedGroup,
    Group,
    GroupAdvantages,
    LineageEntry,
    LogRef,
    MemberAdvantage,
    Message,
    Outcome,
    PatchMeasures,
    PolicyVersion,
    Record,
    RolloutRequest,
    RunSettings,
    Trajectory,
    TrajectoryTokens,
    Verdict,
)

GOLDEN = Path(__file__).parent.parent / "golden"
REQUEST = LogRef(topic="rollout-requests", partition=1, offset=11)
TRAJECTORY = LogRef(topic="trajectories", partition=1, offset=12)
TOKENS = LogRef(topic="trajectory-tokens", partition=1, offset=13)

VERDICT = Verdict(
    group_id="t0-7",
    sample_index=2,
    attempt=AttemptFacts(
        request=REQUEST,
        tokens=TOKENS,
        num_turns=2,
        num_prompt_tokens=19,
        num_sampled_tokens=42,
        policy_version_min=5,
        policy_version_max=6,
        status="completed",
    ),
    task_id="sum-3",
    purpose="training",
    trajectory=TRAJECTORY,
    status="passed",
    reason="",
    num_tests_expected=4,
    num_tests_passed=4,
    measures=PatchMeasures(
        num_added_lines=3, num_removed_lines=1, num_files=2, num_files_out_of_scope=1, num_dead_statements=1
    ),
    patch_digest="ab" * 32,
    duration_s=0.25,
)
GROUP = Group(group_id="t0-7", task_id="sum-3", group_size=8, members=[VERDICT], num_invalid=1, num_missing=2)
SAMPLES: tuple[Record, ...] = (
    RolloutRequest(
        group_id="t0-7",
        sample_index=2,
        group_size=8,
        task_id="sum-3",
        purpose="training",
        seed=77,
        step=5,
        deadline_s=600.5,
        agent_timeout_s=300.0,
    ),
    Trajectory(
        group_id="t0-7",
        sample_index=2,
        attempt=AttemptFacts(
            request=REQUEST,
            tokens=TOKENS,
            status="truncated",
            num_turns=1,
            num_prompt_tokens=19,
            num_sampled_tokens=42,
            policy_version_min=5,
            policy_version_max=6,
        ),
        task_id="sum-3",
        purpose="training",
        failure="token limit",
        infrastructure=False,
        messages=[Message(role="user", content="do \u00e9 it"), Message(role="assistant", content="done")],
        patch="--- a/x\n+++ b/x\n",
        started_at=1700000001.0,
        duration_s=2.5,
        times=AttemptTimes(queue_s=0.25, engine_s=0.125, sandbox_s=0.5, agent_s=1.625),
        generation_s=1.5,
    ),
    TrajectoryTokens(
        group_id="t0-7",
        sample_index=2,
        token_ids=Tensor.of(np.array([9, 1, 2], "<i4")),
        loss_mask=Tensor.of(np.array([0, 1, 1], "u1")),
        behaviour_logprobs=Tensor.of(np.array([0.0, -0.5, -2.25], "<f4")),
        policy_versions=Tensor.of(np.array([-1, 5, 6], "<i4")),
    ),
    VERDICT,
    GROUP,
    GradedGroup(
        group=GROUP,
        grader="rules/1",
        grades=[Grade(sample_index=2, tier=2, position=0, evidence=["one dead statement"])],
        fallback="timeout",
    ),
    GroupAdvantages(
        group_id="t0-7",
        task_id="sum-3",
        members=[
            MemberAdvantage(
                sample_index=2,
                trajectory=TRAJECTORY,
                attempt=AttemptFacts(
                    tokens=TOKENS,
                    num_prompt_tokens=19,
                    num_sampled_tokens=42,
                    policy_version_min=5,
                    policy_version_max=6,
                    status="completed",
                    request=LogRef(topic="rollout-requests", partition=0, offset=0),
                ),
                reward=1.0,
                grpo_advantage=0.5,
                weight=0.6,
                advantage=0.375,
            )
        ],
        grader="rules/1",
        fallback="",
        rescale=1.25,
        was_capped=True,
        shift=0.125,
        num_requested=8,
        num_valid=7,
        num_passed=4,
        num_clean=3,
        num_sampled_tokens=300,
    ),
    Outcome(
        group_id="t0-7",
        task_id="sum-3",
        purpose="training",
        kind="dropped",
        reason="stale",
        run_id="r1",
        step=6,
        policy_version_min=1,
        policy_version_max=2,
        staleness=5,
        num_requested=8,
        num_valid=7,
        num_passed=4,
        num_clean=3,
        num_sampled_tokens=300,
        at=1700000100.25,
    ),
    PolicyVersion(
        run_id="r2",
        version=6,
        step=6,
        lineage=[LineageEntry(run_id="r1", last_step=4)],
        location="/policies/r2/6",
        checksum="cd" * 32,
        is_last=True,
        metrics={"loss": -0.25},
        created_at=1700000100.5,
    ),
    DeadLetter(
        stage="verifier",
        source=TRAJECTORY,
        error="bad",
        key=b"t0-7",
        value=b"\xff\x00",
        headers=[("attempt", b"1")],
        at=1700000100.75,
        retried_as=LogRef(topic="trajectories", partition=1, offset=19),
    ),
    RunSettings(
        settings={"training.group_size": 8, "training.temperature": 0.5, "tasks.train.path": "train.jsonl", "grader.on": True},
        host="worker-1",
        directory="/data/runs/nano",
        at=1700000101.0,
        imported_from="part.gagar.zip: group t0-7",
    ),
)


def golden_file(record: Record) -> Path:
    return GOLDEN / (str(record.__struct_config__.tag).replace("/", "-") + ".hex")


def read_golden(record: Record) -> bytes:
    path = golden_file(record)
    if not path.exists():
        text = records.encode(record).hex()
        path.write_text("".join(f"{text[i : i + 96]}\n" for i in range(0, len(text), 96)), encoding="ascii")
        pytest.fail(f"{path.name} was missing and has been written from the sample; look at it and commit it")
    return bytes.fromhex(path.read_text(encoding="ascii"))


def holds(new: Any, old: Any) -> bool:
    """Whether `new` says all that `old` says; maps may have got more fields."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and holds(new[key], value) for key, value in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(holds, new, old))
    return bool(new == old)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: type(s).__name__)
def test_bytes_of_a_released_version_read_as_they_were_written(sample: Record) -> None:
    assert records.decode(type(sample), read_golden(sample)) == sample


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: type(s).__name__)
def test_what_is_written_today_holds_all_that_a_released_version_held(sample: Record) -> None:
    golden = read_golden(sample)
    again = records.encode(records.decode(type(sample), golden))
    assert holds(msgspec.msgpack.decode(again), msgspec.msgpack.decode(golden))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: type(s).__name__)
def test_a_reader_of_today_ignores_a_field_of_tomorrow(sample: Record) -> None:
    raw = msgspec.msgpack.decode(read_golden(sample))
    assert records.decode(type(sample), msgspec.msgpack.encode({**raw, "field_of_tomorrow": [1, 2]})) == sample


def test_every_record_type_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES} == set(get_args(Record))


def test_every_sample_differs_from_the_defaults_so_that_a_lost_field_shows() -> None:
    exempt = {
        ("Verdict", "reason"),
        ("Trajectory", "infrastructure"),
        ("GroupAdvantages", "fallback"),
    }
    facts = [sample.attempt for sample in SAMPLES if isinstance(sample, Trajectory | Verdict)]
    for sample in (*SAMPLES, *facts):
        for field in msgspec.structs.fields(sample):
            if field.default is not msgspec.NODEFAULT and (type(sample).__name__, field.name) not in exempt:
                assert getattr(sample, field.name) != field.default, f"{type(sample).__name__}.{field.name}"


def test_every_golden_file_belongs_to_a_sample() -> None:
    assert {path.name for path in GOLDEN.glob("*.hex")} == {golden_file(sample).name for sample in SAMPLES}
