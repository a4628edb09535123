"""Builders of records for tests: every field has a value that does not matter, name those that do."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gagar.config import KafkaTable, PolicyTable, Run, RunTable, TrainingTable
from gagar.records import (
    AttemptFacts,
    Group,
    LogRef,
    Outcome,
    PatchMeasures,
    PolicyVersion,
    Purpose,
    RolloutRequest,
    Verdict,
    VerdictStatus,
)
from gagar.stream.handlers import Delivery

CLEAN = PatchMeasures(num_added_lines=1, num_removed_lines=1, num_files=1)
DEAD_CODE = PatchMeasures(num_added_lines=3, num_removed_lines=1, num_files=1, num_dead_statements=1)
OUTSIDE = PatchMeasures(num_added_lines=3, num_removed_lines=1, num_files=2, num_files_out_of_scope=1)


def make_ref(topic: str, offset: int, partition: int = 0) -> LogRef:
    return LogRef(topic=topic, partition=partition, offset=offset)


def make_delivery(record: Any, topic: str = "any", offset: int = 0, at: float = 0.0) -> Delivery[Any]:
    """As it is read at once after it was written."""
    ref, key = make_ref(topic, offset), getattr(record, "group_id", "")
    return Delivery(ref=ref, key=key, record=record, at=at, here=time.monotonic())


def make_request(group_id: str = "t-000000", sample_index: int = 0, **fields: Any) -> RolloutRequest:
    defaults: dict[str, Any] = {
        "group_size": 4,
        "task_id": "task",
        "purpose": "evaluation" if group_id.startswith("e") else "training",
        "seed": 0,
        "step": 0,
        "deadline_s": 600.0,
        "agent_timeout_s": 300.0,
    }
    return RolloutRequest(group_id=group_id, sample_index=sample_index, **{**defaults, **fields})


def make_facts(sample_index: int = 0, **fields: Any) -> AttemptFacts:
    defaults: dict[str, Any] = {
        "request": make_ref("rollout-requests", sample_index),
        "tokens": make_ref("trajectory-tokens", sample_index),
        "status": "completed",
        "num_prompt_tokens": 20,
        "num_sampled_tokens": 40,
        "policy_version_min": 0,
        "policy_version_max": 0,
    }
    return AttemptFacts(**{**defaults, **fields})


def make_verdict(group_id: str = "t-000000", sample_index: int = 0, status: VerdictStatus = "passed", **fields: Any) -> Verdict:
    """`fields` of the attempt's facts are among those of the verdict."""
    facts = {name: fields.pop(name) for name in AttemptFacts.__struct_fields__ if name in fields}
    defaults: dict[str, Any] = {
        "task_id": "task",
        "purpose": "evaluation" if group_id.startswith("e") else "training",
        "attempt": make_facts(sample_index, **facts),
        "trajectory": make_ref("trajectories", sample_index),
        "measures": CLEAN,
        "patch_digest": f"digest-{sample_index}",
    }
    return Verdict(group_id=group_id, sample_index=sample_index, status=status, **{**defaults, **fields})


def make_group(measures: Sequence[PatchMeasures | None], group_id: str = "t-000000", **fields: Any) -> Group:
    """A group of one member for each of `measures`; none: it failed."""
    members = [
        make_verdict(group_id, index, "passed" if m else "failed", measures=m or PatchMeasures())
        for index, m in enumerate(measures)
    ]
    return Group(group_id=group_id, task_id="task", members=members, **{"group_size": len(members), **fields})


def make_outcome(group_id: str = "t-000000", kind: Any = "trained", **fields: Any) -> Outcome:
    defaults: dict[str, Any] = {"num_requested": 4, "num_valid": 4, "num_passed": 2, "num_clean": 1}
    if kind == "trained":
        defaults |= {"run_id": "a", "step": 1, "staleness": 0}
    if kind == "evaluated":
        defaults |= {"step": 0}
    purpose: Purpose = "evaluation" if group_id.startswith("e") else "training"
    outcome = Outcome(group_id=group_id, task_id="task", purpose=purpose, kind=kind)
    return msgspec.structs.replace(outcome, **{**defaults, **fields})


def make_version(step: int = 0, run_id: str = "a", **fields: Any) -> PolicyVersion:
    return PolicyVersion(run_id=run_id, **{"version": step, "step": step, "location": "", "checksum": "", **fields})


def make_run(directory: Path) -> Run:
    """A run whose files lie in `directory`."""
    others: dict[str, Any] = {"tasks": {"train": {"path": "a"}, "heldout": {"path": "b"}}, "grader": {"kind": "rules"}}
    return Run(
        run=RunTable(name="try", dir=str(directory)),
        kafka=KafkaTable(),
        policy=PolicyTable(path="p"),
        training=TrainingTable(),
        tables=others,
        given={"run": {"name": "try", "dir": str(directory)}, "policy": {"path": "p"}, **others},
        root=str(directory),
    )
