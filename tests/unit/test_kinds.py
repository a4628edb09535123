"""Kinds from outside the package: named in the run file, checked before anything starts, run by the stages."""

import os
from pathlib import Path
from typing import Any

import pytest

from gagar.config import Run, load_run
from gagar.errors import ConfigError
from gagar.records import AttemptFacts, GradedGroup, LogRef, Trajectory, Verdict
from gagar.stream.handlers import Effect, Linked, Source
from gagar.training.losses.protocol import TokenBatch
from tests.builders import CLEAN, OUTSIDE, make_delivery, make_group, make_request, make_version
from tests.rollouts import build_model, publish
from tests.toy_kinds import ANSWER
from topology.composition import check_tables, make_handler, stage_config
from topology.resources import Resources
from topology.stages import GRADER, LEARNER, ROLLOUT_WORKER, SAMPLER, VERIFIER

TOYS = """
[run]
name = "toys"
[policy]
path = "policy"
[tasks.train]
kind = "tests.toy_kinds:ToyTasks"
prefix = "train"
[tasks.heldout]
kind = "tests.toy_kinds:ToyTasks"
prefix = "held"
count = 1
[rollout_worker]
engine = {kind = "tests.toy_kinds:ToyEngine", token_ids = [0]}
sandbox.kind = "tests.toy_kinds:ToySandbox"
[verifier]
sandbox.kind = "tests.toy_kinds:ToySandbox"
[grader]
kind = "tests.toy_kinds:ToyGrader"
best_tier = 2
[learner.loss]
kind = "tests.toy_kinds:ToyLoss"
scale = 0.5
"""


class NoReferences:
    async def read(self, refs: Any, record_type: Any, /) -> list[Any]:
        raise NotImplementedError


def toy_run(directory: Path, *overrides: str) -> Run:
    path = directory / "run.toml"
    path.write_text(TOYS)
    return load_run(path, overrides)


async def handled(stage: Any, resources: Resources, record: Any, seen: Any = None) -> Any:
    """What the stage's handler answers, opened as the runtime opens it."""
    handler = make_handler(stage, resources)
    assert isinstance(handler, Effect)
    await handler.open(NoReferences())
    if seen is not None:
        handler.observe(seen)
    [output] = await handler.handle(make_delivery(record))
    await handler.close()
    return output


async def test_toy_tasks_are_what_the_sampler_asks_for(tmp_path: Path) -> None:
    sampler = make_handler(SAMPLER, check_tables(toy_run(tmp_path)))
    assert isinstance(sampler, Source)
    sampler.restore(b"")
    sampler.observe(make_version())
    unit = sampler.next_unit()
    assert unit is not None
    assert {request.task_id for request in unit[0] if not isinstance(request, Linked)} <= {"train-0", "train-1", "held-0"}  # type: ignore[union-attr]


async def test_a_toy_grader_ranks_by_its_own_options(tmp_path: Path) -> None:
    graded = await handled(GRADER, check_tables(toy_run(tmp_path)), make_group([OUTSIDE, CLEAN, None]))
    assert isinstance(graded, GradedGroup)
    assert ([grade.tier for grade in graded.grades], graded.grader) == ([2, 3], "toy/1")


@pytest.mark.slow
async def test_a_toy_engine_and_a_toy_sandbox_make_a_rollout(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(str(build_model(tmp_path / "policy")))(ANSWER)["input_ids"]
    run = toy_run(tmp_path, f"rollout_worker.engine.token_ids={ids}")
    request = make_request("t-1", 0, task_id="train-1", deadline_s=4e9)
    output = await handled(ROLLOUT_WORKER, Resources(run), request, publish(tmp_path / "policy", 3))
    assert isinstance(output, Linked)
    trajectory = output.then(LogRef(topic="trajectory-tokens", partition=0, offset=1))
    assert isinstance(trajectory, Trajectory)
    assert (trajectory.attempt.status, trajectory.attempt.policy_version_max) == ("completed", 3)
    assert "+++ b/toy.txt" in trajectory.patch


async def test_a_toy_sandbox_decides_a_verdict(tmp_path: Path) -> None:
    ref = LogRef(topic="rollout-requests", partition=0, offset=0)
    patch = "diff --git a/toy.txt b/toy.txt\nnew file mode 100644\n--- /dev/null\n+++ b/toy.txt\n@@ -0,0 +1 @@\n+toy\n"
    facts = AttemptFacts(request=ref, tokens=None, status="completed")
    trajectory = Trajectory(group_id="t-1", sample_index=0, task_id="train-0", purpose="training", attempt=facts, patch=patch)
    verdict = await handled(VERIFIER, Resources(toy_run(tmp_path)), trajectory)
    assert isinstance(verdict, Verdict)
    assert verdict.status == "passed"


@pytest.mark.slow
def test_a_toy_loss_is_what_the_learner_minimises(tmp_path: Path) -> None:
    from torch import tensor

    loss = stage_config(LEARNER, toy_run(tmp_path)).loss.make()
    made = loss(TokenBatch(tensor([-1.0, -3.0]), tensor([-1.0, -3.0]), tensor([2.0, -2.0]), tensor([0, 1])))
    assert made.losses.tolist() == [1.0, -3.0]
    assert made.metrics["toy_fraction"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "grader.kind=rule",
            "grader.kind: expected one of rules, none, or package.module:Table, got 'rule'; did you mean ru",
        ),
        ("grader.kind=tests.toy_kinds:Nothing", "grader.kind: expected package.module:Table that can be imported, got "),
        ("grader.kind=no.such.package:Table", "grader.kind: expected package.module:Table that can be imported, got "),
        ("grader.kind=:", "grader.kind: expected package.module:Table that can be imported, got ':'"),
        (
            "grader.kind=tests.toy_kinds:ByIndex",
            "grader.kind: expected a table derived from gagar.grading.protocol.Grader",
        ),
        (
            "grader.kind=tests.toy_kinds:ToyTasks",
            "grader.kind: expected a table derived from gagar.grading.protocol.Grader",
        ),
        ("grader.kind=.toy:ToyGrader", "grader.kind: expected package.module:Table that can be imported, got '.toy:ToyGrader'"),
        ("grader.kind=gagar.grading.protocol:GraderTable", "grader.kind: expected a table derived from gagar.grading.protocol"),
        ("grader.kind=3", "grader.kind: expected a name, got 3"),
        ("grader.best_tier=7", "grader.best_tier: expected 1 to 3, got 7"),
        ("grader.deadline_s=0", "grader.deadline_s: expected more than 0"),
        ("grader.size_slack_lines=1", "grader.size_slack_lines: expected a key of [grader], got size_slack_lines"),
        ("verifier.sandbox.memory_bytes=1", "verifier.sandbox.memory_bytes: expected at least 256 MiB, got 1"),
        ("verifier.sandbox.memory.bytes=1", "verifier.sandbox.memory: expected a key of [verifier.sandbox], got memory"),
        ("grader.kind.name=1", "--set grader.kind.name=1: expected grader.kind to be a table, got 'tests.toy_kinds:ToyGrader'"),
        ("learner.loss.scale=0", "learner.loss.scale: expected more than 0, got 0"),
        ("learner.loss.kind=ppo_clip", "learner.loss.scale: expected a key of [learner.loss], got scale"),
        ("tasks.train.count='x'", "tasks.train.count: expected an integer, got 'x'"),
    ],
)
def test_a_wrong_kind_or_option_is_told_before_anything_starts(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_tables(toy_run(tmp_path, override))
    assert str(caught.value).startswith(message)


def test_a_kind_without_its_name_is_the_first_one(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[run]\nname = 'x'\n[policy]\npath = 'p'\n[tasks]\ntrain.path = 'a'\nheldout.path = 'b'\n")
    with pytest.raises(ConfigError, match=f"task file {tmp_path}{os.sep}a: expected a readable JSON Lines file"):
        check_tables(load_run(path))
