"""A past to replay: a run on the memory transport whose stages have been at work; what its sandbox does, the patch says."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from gagar.cli.run_file import open_run
from gagar.errors import UnavailableError
from gagar.records import LogRef, Record, Trajectory, encode
from gagar.replay.judging import ReplayResult
from gagar.sandbox.protocol import CommandResult, Sandbox, TestRun, Workspace
from gagar.sandbox.table import SandboxTable
from gagar.stream.handlers import Delivery
from gagar.stream.memory.transport import MemoryLog, MemoryTransport
from gagar.stream.readers.scans import scan_transport
from gagar.stream.routing import key_of
from gagar.stream.runtime import StageRuntime
from gagar.stream.spec import Stage, Topic
from gagar.stream.transport import Send
from gagar.tasks.patches import Tree, make_patch
from gagar.tasks.task import Task
from tests.builders import make_request
from tests.contract.world import FAST, make_tokens, make_trajectory
from tests.runs import write_run
from topology import topics
from topology.composition import make_handler
from topology.replay import ReplayChoice, StageReplay
from topology.resources import Resources
from topology.settings import write_settings
from topology.stages import ADVANTAGE_PUBLISHER, GATHERER, GRADER, VERIFIER

TOPIC_OF = {topic.record: topic for topic in topics.TOPICS}
BASE = {"sol.py": "pass\n"}
SOLVED, DEAD, OUTSIDE, WRONG = "solved\n", "solved\ndead\n", "solved outside\n", "wrong\n"
SLOW, FLAKY = "solved slow\n", "flaky\n"
MEMBERS = (SOLVED, DEAD, OUTSIDE, WRONG)
"""What the attempts of a group hand in, if nothing else is said."""
SLOW_S = 5.0


class Scripted(SandboxTable, frozen=True, kw_only=True, tag="scripted"):
    """Tests by what stands in sol.py."""

    passes_flaky: bool = True
    """Whether a flaky solution passes this time."""

    def make(self, concurrency: int) -> Sandbox:
        return ScriptedSandbox(self.passes_flaky)


class ScriptedSandbox:
    """Counts what it is asked, over all that were made."""

    asked: list[str] = []  # noqa: RUF012 - tests clear it
    down_at: int = -1
    """The test run, counted from 0, at which it is down; once."""

    def __init__(self, passes_flaky: bool) -> None:
        self._passes_flaky = passes_flaky

    async def open(self) -> None: ...

    def workspace(self, tree: Tree) -> AbstractAsyncContextManager[Workspace]:
        return self._workspace(tree)

    @asynccontextmanager
    async def _workspace(self, tree: Tree) -> AsyncIterator[Workspace]:
        if len(ScriptedSandbox.asked) == ScriptedSandbox.down_at:
            ScriptedSandbox.down_at = -1
            raise UnavailableError("sandbox: expected to be up, got down")
        ScriptedSandbox.asked.append(tree["sol.py"])
        yield ScriptedWorkspace(tree["sol.py"], self._passes_flaky)

    async def close(self) -> None: ...


class ScriptedWorkspace:
    def __init__(self, text: str, passes_flaky: bool) -> None:
        self._text = text
        self._passes = "solved" in text or ("flaky" in text and passes_flaky)

    async def run(self, script: str, timeout_s: float) -> CommandResult:
        raise AssertionError("the verifier runs no commands")

    async def read_tree(self) -> dict[str, str]:
        raise AssertionError("the verifier reads no tree")

    async def run_tests(self, test_ids: Sequence[str], timeout_s: float, conftests: Sequence[str] = ()) -> TestRun:
        if "slow" in self._text and timeout_s < SLOW_S:
            return TestRun(passed=(), failed=(), is_complete=False, is_timeout=True)
        passed = tuple(test_ids) if self._passes else ()
        return TestRun(passed=passed, failed=() if self._passes else tuple(test_ids), is_complete=True)

    async def count_dead_statements(self, base: Tree, result: Tree) -> int:
        return self._text.count("dead")


def write_task(path: Path, *names: str) -> None:
    """A task file with tasks whose whole tree is sol.py."""
    tasks = [
        Task(task_id=name, statement="", tree=BASE, tests={"t.py": ""}, fail_to_pass=["t.py::t"], scope=["sol.py"])
        for name in names
    ]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, tasks)))


class Past:
    """One run: its log, its run file."""

    def __init__(self, directory: Path, num_partitions: int = 2) -> None:
        self.log = MemoryLog(topics.ALL_TOPICS, num_partitions)
        self.directory = directory
        sandbox = '\n[verifier.sandbox]\nkind = "tests.replays:Scripted"\n'
        self.path = write_run(directory, f"[kafka]\nnum_partitions = {num_partitions}\n{sandbox}")
        write_task(directory / "train.jsonl", "a", "c")
        self.finished: dict[str, int] = {}
        """Inputs by stage."""
        self.views: list[tuple[str, int, int | None]] = []

    def resources(self, *overrides: str) -> Resources:
        return Resources(open_run(str(self.path), overrides), lambda: MemoryTransport(self.log))

    def write(self, record: Record, at: float | None = None) -> LogRef:
        """On its live topic."""
        topic = TOPIC_OF[type(record)]
        return self.log.append(Send(topic=topic.name, key=key_of(record).encode(), value=encode(record)), at=at)

    def attempt(self, group_id: str, texts: Sequence[str] = MEMBERS, task_id: str = "a", **request: Any) -> list[LogRef]:
        """Requests and trajectories of a group; where the latter lie."""
        size = len(texts)
        asked = [make_request(group_id, i, group_size=size, task_id=task_id, **request) for i in range(size)]
        places = [self.write(record) for record in asked]
        return [
            self.write(trajectory_of(record, place, self.write(make_tokens(record)), text))
            for record, place, text in zip(asked, places, texts, strict=True)
        ]

    async def live(self, *overrides: str) -> None:
        """All four stages work off what there is, one after the other."""
        await write_settings(self.resources(*overrides))
        await self.serve(VERIFIER, *overrides)
        for stage in (GATHERER, GRADER, ADVANTAGE_PUBLISHER):
            await self.serve(stage, *overrides)

    async def serve(self, stage: Stage, *overrides: str) -> None:
        """Until everything that lies in its inputs is finished."""
        resources, transport, stop = self.resources(*overrides), MemoryTransport(self.log), asyncio.Event()
        handler: Any = make_handler(stage, resources)
        runtime = StageRuntime(stage, handler, transport, topics.DEAD_LETTERS, FAST)
        expected = sum([len(await self.read(topic)) for topic in stage.inputs])
        task = asyncio.create_task(runtime.run(stop))
        while self.finished.get(stage.name, 0) + runtime.counters.finished < expected and not task.done():
            await self.log.wait_change(0.05)
        self.finished[stage.name] = expected
        stop.set()
        await asyncio.wait_for(task, 15)

    async def deliveries(self, topic: Topic) -> list[Delivery[Any]]:
        """All of a topic."""
        return [delivery async for delivery in scan_transport(MemoryTransport(self.log), [topic])]

    async def read(self, topic: Topic) -> list[Any]:
        """All records of a topic."""
        return [delivery.record for delivery in await self.deliveries(topic)]

    async def replay(self, stage: Stage, *overrides: str, name: str = "replay", **chosen: Any) -> ReplayResult:
        def view(what: str, done: int, total: int | None, /) -> None:
            self.views.append((what, done, total))

        replaying = StageReplay(
            self.resources(*overrides), stage, self.directory / name, ReplayChoice(**{"is_diff": True, **chosen}), view
        )
        return await replaying.run(self.create)

    def create(self, shadows: Sequence[Topic]) -> None:
        """Shadow topics, as the administration makes them."""
        for topic in shadows:
            self.log._topics[topic.name] = topic
            self.log.grow(topic.name, self.log.num_partitions("groups"))

    def state(self) -> dict[str, Any]:
        """Everything that a replay must leave as it is."""
        logs = {str(at): (log.start, log.end) for at, log in self.log.partitions.items() if not at.topic.startswith("replay.")}
        groups = {name: (dict(group.offsets), group.generation) for name, group in self.log.groups.items() if group.offsets}
        return {"logs": logs, "groups": groups}


def trajectory_of(request: Any, place: LogRef, tokens: LogRef, text: str) -> Trajectory:
    """An attempt that hands in `text` as sol.py."""
    after = {"sol.py": text} | ({"other.py": ""} if "outside" in text else {})
    facts = {"request": place, "tokens": tokens, "num_sampled_tokens": 4, "policy_version_min": 0, "policy_version_max": 0}
    return make_trajectory(request, patch=make_patch(BASE, after), **facts)
