"""The lives of a learner in a closed loop: it dies at any commit and goes back to a checkpoint, the real sampler asks on.

What stands between them is a model: a group that was asked for arrives as advantages after a while, in any order, or ends
before.
"""

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from consumers.advantage_publisher import Config as PublisherConfig
from consumers.advantage_publisher import assign_advantages
from consumers.learner.client import JournalClient
from consumers.learner.config import Settings
from consumers.learner.plan import Directive, LoadReport
from consumers.learner.publishing import RunPaths
from consumers.learner.rank import Rank, Stop, _coordinator
from gagar.config import TrainingTable
from gagar.grading.rules import rank
from gagar.groups.gathering import Gather
from gagar.records import GradedGroup, GroupAdvantages, Outcome, PolicyVersion, RolloutRequest
from gagar.stream.handlers import Delivery, Output, References, Tombstone
from gagar.stream.journal import Journal
from gagar.stream.spec import Topic
from gagar.training.background import Background
from gagar.training.checkpoint import LATEST, CheckpointState, read_latest
from gagar.training.deepspeed import StepResult
from gagar.training.ranks import Ranks
from producers.sampler import Sampler
from tests.builders import CLEAN, make_delivery, make_outcome, make_verdict
from tests.contract.world import make_trajectory
from tests.null_learner import NullLoader, NullModel, NullTrainer

GroupEnd = Literal["trained", "all_failed", "stale", "untrainable", "lost", "non_finite"]
Death = Literal["before", "after", "checkpoint", "term"]
"""When a life ends: before its n-th commit, after it, while it writes the next checkpoint after it, or by SIGTERM after it; and
after the planned end in any case."""
Back = Literal["newest", "older", "none"]
"""What the next life finds: the newest checkpoint, an older one that its lineage holds, or no checkpoint at all."""


class Crash(Exception):
    """A death."""


class Life(msgspec.Struct):
    """One run of the learner, as seen from outside."""

    parent: tuple[str, int] | None
    """Run and step of the checkpoint that it went on from."""
    run_id: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How groups fare; the same for every life."""

    seed: int = 0
    ends: Sequence[GroupEnd] = ("trained",)
    """Picked from by group."""
    max_lag: int = 0
    """Versions by which a group's tokens are older than the one it was asked under."""
    is_shuffled: bool = False
    """Groups arrive in any order, some of them much later."""

    def chance(self, group_id: str) -> random.Random:
        return random.Random(f"{self.seed}/{group_id}")

    def end_of(self, group_id: str) -> GroupEnd:
        return self.chance(group_id).choice(self.ends)


class Pipeline:
    """Sampler to advantage publisher, and what all of them have written."""

    def __init__(self, sampler: Sampler, plan: Plan, write: Callable[[GroupAdvantages], None]) -> None:
        self.plan = plan
        self.records: list[Any] = []
        """Everything but advantages that is visible, in the order in which it became so."""
        self.advantages: list[GroupAdvantages] = []
        self._sampler = sampler
        self._write = write
        self._under_way: list[GroupAdvantages] = []
        self._num_observed = 0
        self._chance = random.Random(plan.seed)

    @property
    def outcomes(self) -> list[Outcome]:
        return [record for record in self.records if isinstance(record, Outcome)]

    @property
    def versions(self) -> list[PolicyVersion]:
        return [record for record in self.records if isinstance(record, PolicyVersion)]

    @property
    def requested(self) -> list[str]:
        """Groups in the order in which they were asked for."""
        return list(dict.fromkeys(record.group_id for record in self.records if isinstance(record, RolloutRequest)))

    @property
    def is_done(self) -> bool:
        """The planned end: every group that was asked for has ended."""
        return self._sampler.is_done and self._num_observed == len(self.records)

    def restart(self, sampler: Sampler) -> None:
        """Another sampler takes the place of the one that there was, and reads everything anew."""
        sampler.restore(self._sampler._admission.cursor.to_bytes())
        self._sampler, self._num_observed = sampler, 0

    def turn(self) -> bool:
        """The sampler reads on and asks, some groups arrive; false if nothing can happen before the learner does something."""
        is_news = self._num_observed < len(self.records)
        while self._num_observed < len(self.records):
            record = self.records[self._num_observed]
            self._num_observed += 1
            if isinstance(record, Outcome | PolicyVersion):
                self._sampler.observe(record)
        while (unit := self._sampler.next_unit()) is not None:
            self._attempt(list(unit[0]))
            is_news = True
        num_due = len(self._under_way)
        if self.plan.is_shuffled:
            self._chance.shuffle(self._under_way)
            num_due = min(num_due, self._chance.randint(0 if is_news else 1, 4))
        arrived, self._under_way = self._under_way[:num_due], self._under_way[num_due:]
        for group in arrived:
            self.advantages.append(group)
            self._write(group)
        return is_news or bool(arrived)

    def _attempt(self, requests: list[RolloutRequest]) -> None:
        group_id = requests[0].group_id
        end = self.plan.end_of(group_id)
        self.records += requests
        counts = {"num_requested": len(requests), "num_valid": len(requests), "num_passed": 0, "num_clean": 0}
        if requests[0].purpose == "evaluation":
            self.records.append(make_outcome(group_id, "evaluated", step=requests[0].step, **counts))
        elif end == "all_failed":
            self.records.append(make_outcome(group_id, "dropped", reason="all_failed", **counts))
        else:
            lag = 99 if end == "stale" else self.plan.chance(group_id).randint(0, self.plan.max_lag)
            self._under_way.append(self._grade(requests, max(-1 if end == "stale" else 0, requests[0].step - lag), end))

    def _grade(self, requests: list[RolloutRequest], version: int, end: GroupEnd) -> GroupAdvantages:
        """By the stages' own functions; the first member passes, the others fail."""
        gather = Gather(0.0)
        state = gather.start(requests[0].group_id)
        verdicts = [
            make_verdict(
                request.group_id,
                request.sample_index,
                "failed" if request.sample_index else "passed",
                policy_version_min=version,
                policy_version_max=version,
                num_sampled_tokens=0 if end == "untrainable" else 40,
                measures=CLEAN,
            )
            for request in requests
        ]
        answers = [gather.apply(state, make_delivery(record), 0.0) for record in (*requests, *verdicts)]
        graded = GradedGroup(group=answers[-1].outputs[0], grader="rules/1", grades=rank(answers[-1].outputs[0], 3))  # type: ignore[arg-type]
        trajectories = [
            make_trajectory(request, attempt=verdict.attempt) for request, verdict in zip(requests, verdicts, strict=True)
        ]
        self.records += [*trajectories, *verdicts, graded.group, graded]
        [advantages] = assign_advantages(graded, PublisherConfig())
        return advantages


class MortalJournal:
    """A journal whose learner dies at the `num_commits`-th commit; in idle moments the pipeline takes its turn."""

    def __init__(self, inner: Journal, pipeline: Pipeline, num_commits: int, death: Death, stop: Stop) -> None:
        self.references: References = inner.references
        self.input_id = ""
        self._inner = inner
        self._pipeline = pipeline
        self._num_left = num_commits
        self._death = death
        self._stop = stop
        self._num_idle = 0

    async def connect(self) -> None:
        await self._inner.connect()

    async def open(self) -> None:
        await self._inner.open()

    async def seek(self, positions: Mapping[int, int]) -> None:
        await self._inner.seek(positions)

    async def poll(self, timeout_s: float) -> list[Delivery[Any]]:
        is_news = self._pipeline.turn()
        found = await self._inner.poll(0.0)
        self._num_idle = 0 if found or is_news or not timeout_s else self._num_idle + 1
        if self._num_idle and self._pipeline.is_done:
            self._stop._event.set()
            self._num_idle = 0
        assert self._num_idle < 5, "learner and sampler wait for each other"
        return found

    async def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> None:
        self._num_left -= 1
        if self._num_left == 0 and self._death == "before":
            raise Crash
        await self._inner.commit(outputs, positions)
        self._pipeline.records += [output for output in outputs if not isinstance(output, Tombstone)]
        if self._num_left == 0 and self._death == "after":
            raise Crash
        if self._num_left <= 0 and self._death == "term":
            self._stop._event.set()

    def before_checkpoint(self) -> None:
        if self._num_left <= 0 and self._death == "checkpoint":
            raise Crash

    async def read_table(self, topic: Topic, observe: Callable[[Any], None]) -> None:
        await self._inner.read_table(topic, observe)

    async def close(self) -> None:
        await self._inner.close()


class PlannedLoader(NullLoader):
    """Finds the tokens of some groups gone."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan

    def report(self) -> LoadReport:
        names = super().report().loaded
        bad = {name: "gone" for name in names if self._plan.end_of(name) == "lost"}
        return LoadReport(loaded=[name for name in names if name not in bad], bad=bad)


class PlannedRank(Rank):
    """A step of which a group is not finite is not applied."""

    plan: Plan

    def _step(self, directive: Directive) -> StepResult:
        is_applied = all(self.plan.end_of(name) != "non_finite" for name in directive.train)
        return StepResult(is_applied=is_applied, grad_norm=1.0, metrics={})


class Lives:
    """A learner's lives, one after the other, over what outlives them."""

    def __init__(self, settings: Settings, pipeline: Pipeline, open_journal: Callable[[], Journal]) -> None:
        self.settings = settings
        self.pipeline = pipeline
        self.lives: list[Life] = []
        self.places = RunPaths.of(settings.run)
        self.places.policy.mkdir(parents=True, exist_ok=True)
        self._open_journal = open_journal
        self._is_lost = False
        """The checkpoints have gone, and there is no new one yet: somebody says that the run may start over."""
        self._background = Background("lives")

    def live(self, num_commits: int, death: Death, back: Back = "newest") -> None:
        """One life, from the checkpoint that is found to its death, or (`term`) to a stop in good order."""
        self._go_back(back)
        found = read_latest(self.places.checkpoints)
        base = found[1] if found else CheckpointState(run_id="", step=0)
        self.lives.append(Life((base.run_id, base.step) if found else None))
        self._is_lost = found is None and (self._is_lost or back == "none")
        config = msgspec.structs.replace(self.settings.config, start_over=self._is_lost)
        settings = msgspec.structs.replace(self.settings, config=config)
        stop = Stop()
        journal = MortalJournal(self._open_journal(), self.pipeline, num_commits, death, stop)
        client = JournalClient(journal, self._background)
        num_versions = len(self.pipeline.versions)
        try:
            client.connect()
            coordinator = _coordinator(settings, client, base, self.places, NullModel(), stop)
            trainer: Any = NullTrainer(journal.before_checkpoint)
            loader: Any = PlannedLoader(self.pipeline.plan)
            rank = PlannedRank(self.settings.config, Ranks(), trainer, loader, self.places, coordinator)
            rank.plan = self.pipeline.plan
            rank.run()
        except Crash:
            pass
        if len(self.pipeline.versions) > num_versions:
            self.lives[-1].run_id = self.pipeline.versions[-1].run_id
        client.close()

    def move_end(self, num_steps: int, make_sampler: Callable[[TrainingTable], Sampler]) -> None:
        """The run file of all later lives has another planned end."""
        training = msgspec.structs.replace(self.settings.run.training, num_steps=num_steps)
        self.settings = msgspec.structs.replace(
            self.settings, run=msgspec.structs.replace(self.settings.run, training=training)
        )
        self.pipeline.restart(make_sampler(training))

    def close(self) -> None:
        self._background.close()

    def _go_back(self, back: Back) -> None:
        checkpoints = self.places.checkpoints
        if back == "none":
            shutil.rmtree(checkpoints, ignore_errors=True)
        found = read_latest(checkpoints)
        if back == "older" and found is not None:
            lineage = self.survivors()
            states = {
                path.parent.name: msgspec.json.decode(path.read_bytes(), type=CheckpointState)
                for path in checkpoints.glob("*/state.json")
            }
            older = {name: state.step for name, state in states.items() if state.step <= lineage.get(state.run_id, -1)}
            older = {name: step for name, step in older.items() if step < found[1].step}
            if older:
                (checkpoints / LATEST).write_text(max(older, key=lambda name: older[name]))

    def survivors(self, run_id: str | None = None, step: int = 1 << 30) -> dict[str, int]:
        """Run -> last step that counts, seen from a checkpoint (or from the newest run), by the lives' parents alone."""
        by_run = {life.run_id: life for life in self.lives if life.run_id}
        found: dict[str, int] = {}
        place: tuple[str, int] | None = (run_id if run_id is not None else list(by_run)[-1], step)
        while place is not None:
            found[place[0]] = place[1]
            place = by_run[place[0]].parent
        return found

    def surviving(self, survivors: Mapping[str, int]) -> list[Outcome]:
        return [
            outcome
            for outcome in self.pipeline.outcomes
            if not outcome.run_id or outcome.step <= survivors.get(outcome.run_id, -2)
        ]

    def batches(self) -> dict[int, list[frozenset[str]]]:
        """Step -> the batches that were trained at it, one for each life that came so far."""
        found: dict[tuple[str, int], set[str]] = {}
        for outcome in self.pipeline.outcomes:
            if outcome.kind == "trained":
                found.setdefault((outcome.run_id, outcome.step), set()).add(outcome.group_id)
        steps = sorted({step for _, step in found})
        return {step: [frozenset(groups) for (_, other), groups in found.items() if other == step] for step in steps}


def directory_of(root: Path, number: int) -> Path:
    """A folder of an example of its own."""
    directory = root / str(number)
    directory.mkdir()
    return directory
