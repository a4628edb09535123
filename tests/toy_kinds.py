"""A toy of each kind, as somebody would write it outside the package: `kind = "tests.toy_kinds:ToyGrader"`."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from gagar.engine.kinds import EngineTable
from gagar.engine.protocol import Completion, Engine, SamplingParams
from gagar.grading.protocol import Grader, GraderTable, passing_members
from gagar.policies.chat_template import ChatTemplate
from gagar.records import Grade, Group
from gagar.sandbox.protocol import CommandResult, Sandbox, TestRun, Workspace
from gagar.sandbox.table import SandboxTable
from gagar.stream.handlers import References
from gagar.tasks.patches import Tree
from gagar.tasks.source import TaskSource
from gagar.tasks.task import Task, TaskSet
from gagar.training.losses.kinds import LossTable
from gagar.training.losses.protocol import Loss, TokenBatch, TokenLoss

ANSWER = "```bash\necho toy > toy.txt\nsubmit\n```"


class ToyGrader(GraderTable, frozen=True, kw_only=True, tag="toy"):
    """Ranks by sample index."""

    best_tier: Annotated[int, Meta(ge=1, le=3)] = 1
    """Of the first passing member."""

    def make(self) -> Grader:
        return ByIndex(self.best_tier)


class ByIndex:
    name = "toy/1"

    def __init__(self, best_tier: int) -> None:
        self._best_tier = best_tier

    async def open(self, references: References) -> None: ...

    async def grade(self, group: Group) -> list[Grade]:
        members = passing_members(group)
        tiers = [self._best_tier, *[3] * (len(members) - 1)]
        return [
            Grade(sample_index=member.sample_index, tier=tier, position=place)  # type: ignore[arg-type]
            for place, (member, tier) in enumerate(zip(members, tiers, strict=True))
        ]

    async def close(self) -> None: ...


class ToyTasks(TaskSource, frozen=True, kw_only=True, tag="toy"):
    """Tasks out of thin air."""

    prefix: str
    """Of each task_id."""
    count: int = 2

    def make(self, resolve: Callable[[str], Path]) -> TaskSet:
        return Numbered(self.prefix, self.count)


class Numbered:
    def __init__(self, prefix: str, count: int) -> None:
        self.ids = [f"{prefix}-{number}" for number in range(count)]

    def find(self, task_id: str) -> Task | None:
        if task_id not in self.ids:
            return None
        return Task(task_id=task_id, statement="toy", tree={}, tests={"t.py": ""}, fail_to_pass=["t.py::t"])


class ToySandbox(SandboxTable, frozen=True, kw_only=True, tag="toy"):
    """Runs nothing: whoever submits has written one file, and every test passes."""

    def make(self, concurrency: int) -> Sandbox:
        return Pretending()


class Pretending:
    async def open(self) -> None: ...

    @asynccontextmanager
    async def _workspace(self, tree: Tree) -> AsyncIterator[Workspace]:
        yield PretendedWorkspace(tree)

    def workspace(self, tree: Tree) -> AbstractAsyncContextManager[Workspace]:
        return self._workspace(tree)

    async def close(self) -> None: ...


class PretendedWorkspace:
    def __init__(self, tree: Tree) -> None:
        self._tree = dict(tree)

    async def run(self, script: str, timeout_s: float) -> CommandResult:
        self._tree["toy.txt"] = "toy\n"
        return CommandResult(exit_code=0, output=script.partition(";")[0].split()[-1])

    async def read_tree(self) -> dict[str, str]:
        return self._tree

    async def run_tests(self, test_ids: Sequence[str], timeout_s: float, conftests: Sequence[str] = ()) -> TestRun:
        return TestRun(passed=tuple(test_ids), failed=(), is_complete=True)

    async def count_dead_statements(self, base: Tree, result: Tree) -> int:
        return 0


class ToyEngine(EngineTable, frozen=True, kw_only=True, tag="toy"):
    """Says the same whatever it is asked."""

    token_ids: list[int]
    """What it says."""

    def make(self, chat: ChatTemplate, max_running: int) -> Engine:
        return Parrot(self.token_ids)


class Parrot:
    policy_version = -1

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids

    async def open(self) -> None: ...

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Completion:
        ids = self._token_ids
        versions = [self.policy_version] * len(ids)
        return Completion(token_ids=ids, logprobs=[-1.0] * len(ids), policy_versions=versions, finish="stop", sampling_s=0.0)

    async def load_weights(self, location: Path, version: int) -> None:
        self.policy_version = version

    async def close(self) -> None: ...


class ToyLoss(LossTable, frozen=True, kw_only=True, tag="toy"):
    """Raises the probability of what was sampled, by its advantage."""

    scale: Annotated[float, Meta(gt=0)] = 1.0

    def make(self) -> Loss:
        return Reinforce(self.scale)


class Reinforce:
    needs_proximal_logprobs = False

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def __call__(self, batch: TokenBatch) -> TokenLoss:
        losses = -self._scale * batch.advantages * batch.learner_logprobs
        ratios = (batch.learner_logprobs - batch.behaviour_logprobs).exp().detach()
        return TokenLoss(losses, ratios, {"toy_fraction": (batch.advantages > 0).double()})
