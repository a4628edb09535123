"""A stage of a run again, over records of the past: its handler from the composition root, and a driver that only reads.

In: `Resources` of the run as it is to be replayed (its own settings, or others), what of the past, a directory. Out: answers in
that directory, on shadow topics if asked for, and what came of it. A replay that was interrupted goes on when it is called
again with the same. No consumer group is joined, and no topic of the stream is written.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gagar.errors import ConfigError
from gagar.processes.locks import file_lock
from gagar.replay.answers import AnswerFile, StageAnswer
from gagar.replay.effects import replay_effect
from gagar.replay.judging import Judge, ReplayResult
from gagar.replay.plan import LOCK, ReplayPlan, check_same, groups_of_steps, make_plan, save_plan, saved_plan, with_later_begins
from gagar.replay.recorded import Recorded, read_recorded
from gagar.replay.reducing import replay_reducer
from gagar.replay.selection import Selection
from gagar.replay.shadow import publish, shadows_of
from gagar.stream.handlers import Effect, Reducer
from gagar.stream.readers.references import LogReferences
from gagar.stream.spec import Stage, Topic
from gagar.stream.transport import Transport
from topology.composition import find_stage, make_handler
from topology.resources import Resources
from topology.settings import differences, read_settings, settings_of
from topology.stages import ADVANTAGE_PUBLISHER, GATHERER, GRADER, VERIFIER
from topology.topics import DEAD_LETTERS, OUTCOMES

REPLAYED = (VERIFIER, GATHERER, GRADER, ADVANTAGE_PUBLISHER)


class ReplayChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay, and what to make of it."""

    asked: tuple[str, ...] = ()
    """The choice as it was typed: a replay that goes on must be asked for the same."""
    selection: Selection = Selection()
    steps: tuple[tuple[int, int], ...] = ()
    """First and last step at which groups were trained, or in whose round they were evaluated; empty: any."""
    shadow: str = ""
    """Id of the shadow topics; empty: none."""
    is_diff: bool = False
    """Compare with what was recorded."""


class ReplayView(Protocol):
    """Is shown how far a replay has come."""

    def __call__(self, what: str, done: int, total: int | None, /) -> None: ...


def find_replayed(name: str) -> Stage:
    """The stage of that name; raises ConfigError for one that cannot be replayed."""
    stage = find_stage(name)
    if stage in REPLAYED:
        return stage
    names = ", ".join(stage.name for stage in REPLAYED)
    others = {"source": "a source has no inputs to replay", "effect": "sampling again gives other trajectories"}
    why = others.get(stage.kind, "its steps cannot be replayed yet")
    raise ConfigError(f"stage: expected one to replay, of {names}, got {name}: {why}")


class StageReplay:
    """One replay of a stage of a run into a directory."""

    def __init__(self, resources: Resources, stage: Stage, directory: Path, chosen: ReplayChoice, view: ReplayView) -> None:
        """Raises ConfigError if the stage's table is wrong, or the directory holds something else."""
        handler = make_handler(stage, resources)
        if not isinstance(handler, Effect | Reducer):
            raise ConfigError(f"stage: expected a handler of single records or groups, got {stage.kind} {stage.name}")
        saved_plan(directory)
        self._handler: Effect | Reducer[Any] = handler
        self._resources = resources
        self._stage = stage
        self._directory = directory
        self._chosen = chosen
        self._view = view
        self._settings = settings_of(resources.run)

    async def run(self, create: Callable[[Sequence[Topic]], None]) -> ReplayResult:
        """Replays, publishes and compares. `create` makes shadow topics on the cluster, those that are missing. Raises
        ConfigError, UnavailableError."""
        of_run = await read_settings(self._resources)
        changed = differences(of_run.settings, self._settings) if of_run else []
        advice = "another replay is at work there: wait for it, or take another --dir"
        with file_lock(self._directory / LOCK, timeout_s=0.0, advice=advice):
            async with self._resources.opened() as transport:
                plan = await self._plan(transport)
                await self._answer(transport, plan)
                plan = await with_later_begins(transport, self._stage, plan)
                if self._chosen.shadow:
                    await self._publish(transport, create)
                recorded = await self._recorded(transport, plan) if self._chosen.is_diff else None
            judge = Judge(self._stage, plan, self._directory, changed, recorded)
            return judge.judge(lambda done: self._view("comparing" if recorded else "counting", done, None))

    async def _plan(self, transport: Transport) -> ReplayPlan:
        """That of the replay that was begun in the directory, or a new one."""
        run, chosen = self._resources.run.run.name, self._chosen
        plan = saved_plan(self._directory)
        if plan is not None:
            check_same(self._directory, plan, self._stage.name, run, chosen.asked, self._settings)
            return plan
        shadow = chosen.shadow
        if shadow and await transport.describe(shadows_of(self._stage.outputs, shadow)):
            raise ConfigError(f"--shadow {shadow}: expected an id without topics, got that of another replay; take a new one")
        selection = chosen.selection
        if chosen.steps:
            found = await groups_of_steps(transport, OUTCOMES, chosen.steps)
            groups = found if selection.groups is None else found & selection.groups
            selection = msgspec.structs.replace(selection, groups=groups)
        plan = await make_plan(
            transport,
            self._stage,
            DEAD_LETTERS,
            run=run,
            asked=chosen.asked,
            settings=self._settings,
            selection=selection,
        )
        save_plan(self._directory, plan)
        return plan

    async def _answer(self, transport: Transport, plan: ReplayPlan) -> None:
        """All answers are in the file when this returns."""
        references = LogReferences(transport, self._stage.references)
        file = AnswerFile(self._directory)
        try:
            await self._handler.open(references)
            try:
                async with aclosing(self._answers(transport, plan, file)) as answers:
                    async for answer in answers:
                        file.append(answer)
            finally:
                await self._handler.close()
        finally:
            file.close()
            await references.close()

    def _answers(self, transport: Transport, plan: ReplayPlan, file: AnswerFile) -> AsyncGenerator[StageAnswer, None]:
        """Those that are not in the file yet."""

        def note(done: int) -> None:
            self._view("replaying", done, plan.num_offsets)

        handler, inputs = self._handler, self._stage.inputs
        if isinstance(handler, Reducer):
            return replay_reducer(transport, inputs, handler, plan, num_done=file.num_answers, note=note)
        after = file.last.input if file.last is not None else None
        window = self._resources.run.stream.window
        return replay_effect(transport, inputs[0], handler, plan, after=after, window=window, note=note)

    async def _publish(self, transport: Transport, create: Callable[[Sequence[Topic]], None]) -> None:
        shadow = self._chosen.shadow
        self._view(f"writing topics replay.{shadow}.*", 0, None)
        shadows = shadows_of(self._stage.outputs, shadow)
        await asyncio.to_thread(create, shadows)
        await publish(transport, shadows, shadow, self._directory)

    async def _recorded(self, transport: Transport, plan: ReplayPlan) -> Recorded:
        self._view("reading what was recorded", 0, None)
        return await read_recorded(transport, self._stage, DEAD_LETTERS, plan)
