"""The learner as real processes on a real log: killed, started again, and nothing is lost or trained twice."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gagar.cli.topics.planning import apply_topology
from gagar.config import Run, load_run
from gagar.groups.lineage import Lineage
from gagar.processes.identity import identity
from gagar.records import LogRef, Outcome, PolicyVersion, TrajectoryTokens
from gagar.stream.journal import LogJournal
from gagar.stream.kafka.client import KafkaTransport
from gagar.stream.readers.scans import scan_transport
from gagar.stream.spec import Stage, Topic
from tests.learner import make_advantages, make_member, make_model_directory, make_tokens
from tests.runs import write_tasks
from topology import topics

pytestmark = pytest.mark.broker

FEEDER = Stage(
    name="feeder",
    module="tests",
    kind="learner",
    inputs=(topics.GRADED_GROUPS,),
    outputs=(topics.ADVANTAGES, topics.TRAJECTORY_TOKENS),
)
RUN_FILE = """
[run]
name = "{name}"
dir = "data"
[kafka]
bootstrap_servers = "{servers}"
num_partitions = 3
[policy]
path = "policy"
[tasks]
train.path = "train.jsonl"
heldout.path = "heldout.jsonl"
[training]
groups_per_step = 2
num_steps = {num_steps}
max_staleness = 64
[learner]
num_ranks = {num_ranks}
checkpoint_every = 2
num_threads = 1
"""
WAIT_S = 400.0


def make_run(root: Path, servers: str, num_ranks: int, num_steps: int) -> Run:
    """A run of its own on the session's broker, with topics, policy and tasks."""
    make_model_directory(root / "policy")
    for name in ("train", "heldout"):
        write_tasks(root / f"{name}.jsonl", name)
    name = f"l{uuid.uuid4().hex[:8]}"
    text = RUN_FILE.format(name=name, servers=servers, num_ranks=num_ranks, num_steps=num_steps)
    (root / "run.toml").write_text(text)
    run = load_run(root / "run.toml")
    apply_topology(run)
    return run


async def feed(run: Run, numbers: range) -> None:
    """Writes groups `g<number>` of two members with their tokens."""
    journal = LogJournal(FEEDER, _transport(run), topics.DEAD_LETTERS)
    await journal.open()
    rng = np.random.default_rng(0)
    tokens = [make_tokens(rng, f"g{number}", index) for number in numbers for index in range(2)]
    await journal.commit(tokens, {})
    refs: dict[tuple[str, int], LogRef] = {}
    while not all((record.group_id, record.sample_index) in refs for record in tokens):
        # The end that readers see follows a commit's answer by a moment.
        refs = {(d.record.group_id, d.record.sample_index): d.ref for d in await _scan(run, topics.TRAJECTORY_TOKENS)}
    await journal.commit([_advantages(f"g{number}", refs, tokens) for number in numbers], {})
    await journal.close()


def _advantages(group_id: str, refs: dict[tuple[str, int], LogRef], tokens: list[TrajectoryTokens]) -> Any:
    mine = [record for record in tokens if record.group_id == group_id]
    members = [
        make_member(record.sample_index, refs[group_id, record.sample_index], record, 0.5 - record.sample_index, 0)
        for record in mine
    ]
    return make_advantages(group_id, members)


def _transport(run: Run) -> KafkaTransport:
    return KafkaTransport(run.kafka, run.run.name)


async def _scan(run: Run, topic: Topic) -> list[Any]:
    transport = _transport(run)
    await transport.open()
    try:
        return [delivery async for delivery in scan_transport(transport, [topic])]
    finally:
        await transport.close()


def records(run: Run, topic: Topic) -> list[Any]:
    return [delivery.record for delivery in asyncio.run(_scan(run, topic))]


def command(run: Run) -> list[str]:
    return [sys.executable, "-m", "gagar.cli.main", "run", "learner", "--run", str(Path(run.root) / "run.toml")]


@contextmanager
def learner(run: Run) -> Iterator[subprocess.Popen[bytes]]:
    """`gagar run learner`, killed at the end if it still lives."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command(run), env=environment, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(
    run: Run, process: subprocess.Popen[bytes], is_there: Callable[[list[Outcome], list[PolicyVersion]], bool]
) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_there(records(run, topics.OUTCOMES), records(run, topics.POLICY_VERSIONS)):
        assert process.poll() is None, f"learner ended with {process.returncode}"
        assert time.monotonic() < deadline, "not in time"
        time.sleep(1.0)  # reading everything takes a core that the learner needs


def surviving(run: Run) -> Counter[str]:
    """How often each group ended in the surviving lineage."""
    lineage = Lineage()
    for version in records(run, topics.POLICY_VERSIONS):
        lineage.observe(version)
    outcomes = records(run, topics.OUTCOMES)
    return Counter(outcome.group_id for outcome in outcomes if lineage.survives(outcome.run_id, outcome.step))


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_learner_that_is_killed_goes_on_and_every_group_ends_once(kafka_servers: str, tmp_path: Path, num_ranks: int) -> None:
    run = make_run(tmp_path, kafka_servers, num_ranks, num_steps=5)
    asyncio.run(feed(run, range(6)))
    with learner(run) as doomed:
        wait_for(run, doomed, lambda outcomes, versions: any(version.step == 3 for version in versions))
        children = _children(doomed.pid)
        assert len(children) == (num_ranks if num_ranks > 1 else 0)
        doomed.send_signal(signal.SIGKILL)
        doomed.wait()
    _wait_dead(children)
    asyncio.run(feed(run, range(6, 12)))
    with learner(run) as successor:
        wait_for(run, successor, lambda outcomes, versions: len({outcome.group_id for outcome in outcomes}) == 12)
        if num_ranks == 1:
            check_stranger(run, tmp_path / "elsewhere")
        successor.send_signal(signal.SIGTERM)
        assert successor.wait(15) == 0
    assert surviving(run) == Counter({f"g{number}": 1 for number in range(12)})
    versions = records(run, topics.POLICY_VERSIONS)
    assert versions[-1].is_last
    assert versions[-1].lineage[0].run_id == versions[0].run_id
    assert {outcome.reason for outcome in records(run, topics.OUTCOMES)} == {"", "ended"}


def check_stranger(run: Run, directory: Path) -> None:
    """A learner of the same run in another directory is refused, and the one at work not fenced: it would end with a code."""
    asked = [*command(run), "--set", f"run.dir={directory}"]
    stranger = subprocess.run(asked, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert stranger.returncode == 2
    assert "expected one, since this run has been trained up to step 5" in stranger.stderr


def _children(pid: int) -> list[tuple[int, str | None]]:
    import psutil

    return [(child.pid, identity(child.pid)) for child in psutil.Process(pid).children()]


def _wait_dead(children: list[tuple[int, str | None]]) -> None:
    deadline = time.monotonic() + 20
    while any(identity(pid) == known for pid, known in children):
        assert time.monotonic() < deadline, f"{children} live on"
        time.sleep(0.05)
