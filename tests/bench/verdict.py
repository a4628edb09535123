"""A nano verdict in the warm bubblewrap sandbox against `python -m pytest` in a fresh process on the same tree.

Warm: the verifier's handler from the trajectory to the verdict; core time of this process, of the sandbox's server and of all
that ran in it. Fresh: pytest alone, its plugins' autoloading off (which favours it), no wall around it. Interleaved in blocks.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import gagar
from consumers.verifier import Config, VerifyTrajectories, lay_over
from gagar.config import load_run
from gagar.records import AttemptFacts, LogRef, Trajectory
from gagar.sandbox.kinds import Bubblewrap
from gagar.stream.handlers import Delivery, References
from gagar.tasks.jsonl import JsonlTasks
from gagar.tasks.patches import apply_patch
from gagar.tasks.task import Task
from tests.bench.core_time import of_command_s, tree_s
from tests.bench.figures import Part, Spread, paired_ratio, rounded, table
from topology.resources import Resources

NUM_BLOCKS = 6
BLOCK = 10
"""Verdicts of each kind in a block; a living process's time is known to 10 ms."""
NANO = Path(gagar.__file__).parent / "data" / "nano"


class NoReferences(References):
    """The verifier reads nothing by reference."""

    async def read(self, refs: Sequence[LogRef], record_type: type, /) -> list:  # type: ignore[type-arg]
        raise AssertionError("the verifier reads by reference")


def delivery_of(task: Task) -> Delivery[Trajectory]:
    """A finished attempt that solved the task."""
    ref = LogRef(topic="trajectories", partition=0, offset=0)
    trajectory = Trajectory(
        group_id="t-000000",
        sample_index=0,
        attempt=AttemptFacts(request=ref, tokens=ref, status="completed"),
        task_id=task.task_id,
        purpose="training",
        patch=task.reference_patch,
    )
    return Delivery(ref=ref, key=trajectory.group_id, record=trajectory, at=0.0)


async def warm_s(verifier: VerifyTrajectories, tasks: Sequence[Task]) -> float:
    """Core seconds of a verdict."""
    before = tree_s()
    for task in tasks:
        [verdict] = await verifier.handle(delivery_of(task))
        if verdict.status != "passed":
            raise AssertionError(f"{task.task_id}: expected to pass, got {verdict.status}: {verdict.reason}")
    return (tree_s() - before) / len(tasks)


def fresh_s(tasks: Sequence[Task]) -> float:
    """Core seconds of a fresh pytest."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    total_s = 0.0
    for task in tasks:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            for path, text in lay_over(apply_patch(task.tree, task.reference_patch), task.tests).items():
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                (directory / path).write_text(text)
            command = [sys.executable, "-m", "pytest", "-q", "--rootdir", name, *task.expected_tests]
            core_s, code = of_command_s(command, directory, environment)
        if code != 0:
            raise AssertionError(f"{task.task_id}: expected to pass in a fresh pytest, got exit code {code}")
        total_s += core_s
    return total_s / len(tasks)


async def measure(num_blocks: int, block: int) -> tuple[list[float], list[float]]:
    """Core seconds of a verdict, warm and fresh, by block."""
    run = load_run(NANO / "run.toml", root=Path.cwd())
    resources = Resources(run)
    verifier = VerifyTrajectories(resources.tasks, Bubblewrap().make(1), Config().test_timeout_s)
    tasks = JsonlTasks(NANO / "heldout.jsonl").all()
    warm, fresh = [], []
    await verifier.open(NoReferences())
    try:
        await warm_s(verifier, tasks[:2])
        for number in range(num_blocks):
            chosen = [tasks[(number * block + index) % len(tasks)] for index in range(block)]
            warm.append(await warm_s(verifier, chosen))
            fresh.append(await asyncio.to_thread(fresh_s, chosen))
    finally:
        await verifier.close()
    return warm, fresh


def run(quick: bool) -> Part:
    """The part `verdict`."""
    warm, fresh = asyncio.run(measure(2, 3) if quick else measure(NUM_BLOCKS, BLOCK))
    warm_ms, fresh_ms = (Spread.of([1000 * value for value in values]) for values in (warm, fresh))
    ratio = paired_ratio(fresh, warm)
    rows = [["warm sandbox, core-ms", str(warm_ms)], ["fresh pytest, core-ms", str(fresh_ms)], ["fresh over warm", str(ratio)]]
    return Part(
        table=table("verdict: one nano verdict, median (range) over blocks", ["", "median (range)"], rows),
        figures={
            **warm_ms.as_json("warm_core_ms"),
            **fresh_ms.as_json("fresh_core_ms"),
            "ratio": rounded(ratio.median),
            "ratio_range": [rounded(ratio.low), rounded(ratio.high)],
        },
    )
