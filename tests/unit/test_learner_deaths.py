"""The learner dies at every place where it waits, and at every step of writing a checkpoint; started again, it leaves one
surviving lineage in which every group ended once, in the same batches as in a run that was never disturbed."""

import asyncio
import logging
import random
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.learner.client import JournalClient
from consumers.learner.publishing import RunPaths
from consumers.learner.rank import Stop
from gagar.groups.lineage import Lineage
from gagar.records import decode
from gagar.stream.journal import LogJournal
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.spec import Topic
from gagar.stream.transport import Partition, Send
from gagar.training.checkpoint import read_latest
from tests.contract.world import FAST, MemoryWorld, write
from tests.dying import Killed, Mortal, deaths_at, never_waited_at, simulated
from tests.learner import NUM_PARTITIONS, make_settings
from tests.null_learner import learn, make_group
from topology import topics
from topology.stages import LEARNER

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of processes warn of what they abandon."""
    caplog.set_level(logging.CRITICAL)


NUM_STEPS = 3
NUM_GROUPS = 2 * NUM_STEPS + 1
"""The last one comes after the planned end."""
MAX_ROUNDS = 300
ELSEWHERE = {
    # A stop; a reader that is lost; records that are gone; a log that has failed, which ends the learner.
    *("LogJournal.close", "LogJournal.poll: self._skip_missing(error)", "LogJournal._skip_missing"),
    "LogJournal._transact: producer.close()",
    "LogJournal.open: self.connect()",  # which a learner has done before
}


class WholeMemory(MemoryWorld):
    """All topics of the pipeline."""

    def __init__(self) -> None:
        self.log = MemoryLog(topics.TOPICS, NUM_PARTITIONS)
        self.num_groups = NUM_GROUPS + 1
        """Those of `prepare`, a poisoned one among them."""

    async def prepare(self) -> None:
        """Groups that are trained from the end of the log to its start."""
        groups: list[Any] = [make_group(number) for number in reversed(range(NUM_GROUPS))]
        groups.insert(4, Send(topic=topics.ADVANTAGES.name, key=b"g-poison", value=b"\xc1"))
        await write(self, groups, {topics.ADVANTAGES.record: topics.ADVANTAGES})

    def records(self, topic: Topic) -> list[Any]:
        """What is visible."""
        partitions = [Partition(topic.name, number) for number in range(self.log.num_partitions(topic.name))]
        raws = [raw for at in partitions for raw in self.log.visible(at, 0, 1 << 20)[0]]
        return [decode(topic.record, raw.value) for raw in raws if raw.value is not None]

    def ends(self) -> list[tuple[str, ...]]:
        """How the groups ended, in the surviving lineage."""
        lineage = Lineage()
        for version in self.records(topics.POLICY_VERSIONS):
            lineage.observe(version)
        return sorted(
            (outcome.group_id, outcome.kind, outcome.reason, str(outcome.step))
            for outcome in self.records(topics.OUTCOMES)
            if not outcome.run_id or lineage.survives(outcome.run_id, outcome.step)
        )

    def steps(self) -> list[int]:
        """Steps whose version survives."""
        lineage = Lineage()
        versions = self.records(topics.POLICY_VERSIONS)
        for version in versions:
            lineage.observe(version)
        return sorted({version.step for version in versions if lineage.survives(version.run_id, version.step)})


class OneThread:
    """`gagar.training.background.Background`, of a process that may die."""

    def __init__(self, runner: asyncio.Runner, mortal: Mortal) -> None:
        self._runner = runner
        self._mortal = mortal

    def call(self, work: Coroutine[Any, Any, Any], *, timeout_s: float, what: str) -> Any:
        try:
            self._mortal.pass_point_outside()
            answer = self._runner.run(work)
            self._mortal.pass_point_outside()
        except asyncio.CancelledError:
            raise Killed from None
        finally:
            work.close()
        return answer


class StopAt(Stop):
    """SIGTERM once every group has ended."""

    def __init__(self, world: WholeMemory) -> None:
        super().__init__()
        self._world = world
        self._rounds = 0

    def is_set(self) -> bool:
        self._rounds += 1
        assert self._rounds < MAX_ROUNDS, "the learner gets nowhere"
        return len({end[0] for end in self._world.ends()}) == self._world.num_groups


def live(world: WholeMemory, root: Path, runner: asyncio.Runner, mortal: Mortal) -> None:
    """One life of a learner, to its death or to the end of the work."""
    settings = make_settings(root, {"num_steps": NUM_STEPS}, checkpoint_every=2, keep_policies=2)
    mortal.transport = MemoryTransport(world.log)
    background: Any = OneThread(runner, mortal)
    journal = LogJournal(LEARNER, mortal.transport, topics.DEAD_LETTERS, FAST)
    random.seed(0)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("flush_path", "flush_tree"):
            patch.setattr(f"gagar.training.checkpoint.{name}", lambda path: mortal.pass_point_outside())
            patch.setattr(f"gagar.training.model.{name}", lambda path: mortal.pass_point_outside())
        try:
            with mortal.lives(runner.get_loop()):
                learn(settings, JournalClient(journal, background), StopAt(world), mortal.pass_point_outside)
        except Killed:
            pass
    runner.run(mortal.buried())
    runner.run(journal.close())


def end_of(root: Path, runner: asyncio.Runner, deaths: Sequence[int], last: Mortal) -> tuple[Any, ...]:
    """What is in the log and in the newest checkpoint after a life for each death, and one, `last`, that ends its work."""
    world = WholeMemory()
    runner.run(world.prepare())
    for at in deaths:
        live(world, root, runner, Mortal(at))
    live(world, root, runner, last)
    found = read_latest(RunPaths.of(make_settings(root).run).checkpoints)
    assert found is not None
    state = msgspec.structs.replace(found[1], run_id="", lineage=[])
    letters = [letter.key for letter in world.records(topics.DEAD_LETTERS)]
    return world.ends(), world.steps(), letters, world.log.group(LEARNER.name).offsets, state


def test_a_learner_that_dies_wherever_it_waits_loses_and_doubles_nothing(tmp_path: Path, double_every: int) -> None:
    undisturbed = Mortal()
    with simulated() as runner:
        expected = end_of(tmp_path / "undisturbed", runner, [], undisturbed)
        assert len({end[0] for end in expected[0]}) == len(expected[0]) == NUM_GROUPS + 1
        assert expected[1:3] == (list(range(NUM_STEPS + 1)), [b"g-poison"])
        assert undisturbed.num_points >= 150
        for deaths in deaths_at(undisturbed.num_points, double_every):
            root = tmp_path / "-".join(map(str, deaths))
            assert end_of(root, runner, deaths, Mortal()) == expected, f"died at points {deaths}"


def test_the_points_to_die_at_are_all_awaits_of_the_journal(tmp_path: Path) -> None:
    undisturbed = Mortal()
    with simulated() as runner:
        end_of(tmp_path, runner, [], undisturbed)
    assert never_waited_at([LogJournal], undisturbed.waited_at, ELSEWHERE) == []


def test_the_batches_of_abandoned_steps_come_again_though_an_older_group_has_come_meanwhile(tmp_path: Path) -> None:
    with simulated() as runner:
        for at in range(1, 1000):
            world, root = WholeMemory(), tmp_path / str(at)
            runner.run(world.prepare())
            live(world, root, runner, Mortal(at))
            found = read_latest(RunPaths.of(make_settings(root).run).checkpoints)
            if world.steps()[-1:] == [NUM_STEPS] and found is not None and found[1].step == NUM_STEPS - 1:
                break
        trained = [end for end in world.ends() if end[1] == "trained"]
        older = make_group(NUM_GROUPS, version=0)
        runner.run(write(world, [older], {topics.ADVANTAGES.record: topics.ADVANTAGES}))
        world.num_groups += 1
        live(world, root, runner, Mortal())
    assert len(trained) == 2 * NUM_STEPS
    assert [end for end in world.ends() if end[1] == "trained"] == trained
