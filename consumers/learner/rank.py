"""One rank of the learner: set-up, and the rounds that all ranks make together.

A round: rank 0's directive, broadcast; reads begun and let go; a step, or a wait; the ranks' reports. Torch computes on the
main thread, the log is read on an event loop in the background. On SIGTERM the round in progress ends, a checkpoint is
written, and the process exits; if that takes too long it exits anyway, since a restart loses nothing.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec

from consumers.learner.client import JournalClient, LogClient, ReferencesClient
from consumers.learner.config import Config, Settings
from consumers.learner.coordinator import Coordinator
from consumers.learner.facts import PastOutcomes, RunIdentity, check_untrained, identify
from consumers.learner.loading import TokenLoader
from consumers.learner.plan import Directive, LoadReport
from consumers.learner.publishing import Publisher, RunPaths, new_run_id
from consumers.learner.queue import FinishedOffsets, GroupQueue
from consumers.learner.vitals import RankVitals
from gagar.config import Run
from gagar.errors import ConfigError
from gagar.health.reporter import HealthReporter
from gagar.processes.forced_end import called_off, end_by_force_after
from gagar.records import PolicyVersion
from gagar.training.background import Background
from gagar.training.batch import collate
from gagar.training.checkpoint import CheckpointState, check_fits, check_input, read_latest
from gagar.training.deepspeed import Optimization, StepResult, Trainer, open_ranks
from gagar.training.model import describe, load_model
from gagar.training.packing import pack
from gagar.training.ranks import Ranks
from topology import topics
from topology.resources import Resources

logger = logging.getLogger(__name__)
LOAD_WAIT_S = 0.2
"""A round's wait for reads that are under way."""
STOP_S = 10.0
"""From SIGTERM to an exit by force, before the parent of several ranks ends them by force."""
LOG_S = 6.0
"""From SIGTERM on the log has so long to answer; then the learner ends without it, and a new run finds out what it wrote."""


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 found to start from."""

    state: CheckpointState
    directory: str = ""
    """Of the checkpoint; empty: the initial policy."""


class Rank:
    """The rounds of one rank. `coordinator` is there on rank 0 only."""

    def __init__(
        self,
        config: Config,
        ranks: Ranks,
        trainer: Trainer,
        loader: TokenLoader,
        paths: RunPaths,
        coordinator: Coordinator | None,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._trainer = trainer
        self._loader = loader
        self._paths = paths
        self._coordinator = coordinator
        self.round_at = time.monotonic()

    def run(self) -> None:
        """Round after round until rank 0 says stop."""
        state = self._trainer.gather_state()
        if self._coordinator:
            self._coordinator.start(state)
        while self.round():
            pass

    def round(self) -> bool:
        """One round; false if it was the last."""
        self.round_at = time.monotonic()
        directive = self._ranks.broadcast(self._next, Directive)
        self._loader.start(directive.load)
        if directive.kind == "train":
            self._train(directive)
        elif directive.checkpoint:
            self._checkpoint(directive.checkpoint)
        self._loader.forget(directive.forget)
        if directive.kind == "stop":
            return False
        if directive.kind == "wait":
            self._loader.wait(LOAD_WAIT_S)
        reports = self._ranks.gather(self._loader.report(), LoadReport)
        if self._coordinator:
            self._coordinator.observe(reports)
        return True

    def _next(self) -> Directive:
        assert self._coordinator is not None
        return self._coordinator.next_directive()

    def _train(self, directive: Directive) -> None:
        started = time.monotonic()
        result = self._step(directive)
        state = self._trainer.gather_state() if result.is_applied else {}
        if self._coordinator:
            self._coordinator.finish_step(result, state, time.monotonic() - started)
        self._loader.forget(directive.train)
        if directive.checkpoint and result.is_applied:
            self._checkpoint(directive.checkpoint)

    def _step(self, directive: Directive) -> StepResult:
        groups, samples = self._loader.take(directive.train)
        members = [member for group in groups for member in group.members]
        owned = [[i for i, member in enumerate(members) if member.rank == rank] for rank in range(self._ranks.world_size)]
        plan = pack(owned, [member.length for member in members], self._config.token_budget)[self._ranks.rank]
        place = {index: number for number, index in enumerate(owned[self._ranks.rank])}
        batches = [collate([samples[place[index]] for index in batch]) for batch in plan]
        return self._trainer.step(batches, sum(group.num_sampled for group in groups), directive.step)

    def _checkpoint(self, name: str) -> None:
        self._trainer.save(self._paths.checkpoints / name)
        self._ranks.barrier()
        if self._coordinator:
            self._coordinator.finish_checkpoint(name)


class Stop:
    """SIGTERM and SIGINT: a stop in good order with an exit by force behind it. While the process starts nothing is under way
    that a stop could end in good order: it exits at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.is_starting = False
        self.bound: Callable[[float], None] = lambda seconds: None
        """Called with the seconds that the log has from now on."""

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def is_set(self) -> bool:
        return self._event.is_set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_starting:
            logging.shutdown()
            os._exit(0)
        if not self._event.is_set():
            self._event.set()
            self.bound(LOG_S)
            end_by_force_after(STOP_S)


def run_rank(settings: Settings, health: HealthReporter | None = None) -> None:
    """This process's rank from set-up to its end; `health` tells how it is. Raises ConfigError before anything is
    written or connected to."""
    from topology.stages import LEARNER

    stop = Stop()
    stop.is_starting = True
    stop.install()
    resources, vitals = Resources(settings.run), RankVitals(settings.config.collective_timeout_s, stop.is_set)

    def make_client(background: Background) -> LogClient:
        journal = resources.journal(LEARNER) if os.environ.get("RANK", "0") == "0" else None
        vitals.follow(health, background, journal)
        return JournalClient(journal, background) if journal else ReferencesClient(resources.references(), background)

    with called_off():
        train(settings, make_client, stop, vitals)


def train(
    settings: Settings, make_client: Callable[[Background], LogClient], stop: Stop, vitals: RankVitals | None = None
) -> None:
    """The rank over its way into the log: a JournalClient on rank 0, a ReferencesClient on the others. `vitals` is told of its
    rounds."""
    config = settings.config
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != str(config.num_ranks):
        raise ConfigError(f"learner.num_ranks: expected as many as were started, {world_size}, got {config.num_ranks}")
    _set_threads(config.num_threads)
    paths = RunPaths.of(settings.run)
    model = load_model(paths.policy, config.dtype)
    mine = _state_of(model, config)
    _find(paths, mine)
    ranks = open_ranks(config.collective_timeout_s)
    background = Background(f"learner log {ranks.rank}")
    stop.bound = background.end_by
    try:
        client = make_client(background)
        client.connect()
        resumed = ranks.broadcast(lambda: _find(paths, mine), Resumed)
        trainer = Trainer(model, optimization(config, settings.run), config.loss.make(), ranks)
        if resumed.directory:
            trainer.load(paths.checkpoints / resumed.directory)
        vocab_size: Any = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        loader = TokenLoader(client.references, background, ranks.rank, vocab_size)
        coordinator = None
        if isinstance(client, JournalClient):
            coordinator = _coordinator(settings, client, resumed.state, paths, model, stop)
        stop.is_starting = False
        rank = Rank(config, ranks, trainer, loader, paths, coordinator)
        if vitals is not None:
            vitals.rounds = rank
        rank.run()
        client.close()
        trainer.close()
        logger.info("learner rank stopped rank=%d", ranks.rank)
    finally:
        background.close()


def _state_of(model: Any, config: Config) -> CheckpointState:
    """What a checkpoint must fit, before any step."""
    return CheckpointState(
        run_id="",
        step=0,
        model=describe(model),
        num_ranks=config.num_ranks,
        zero_stage=config.zero_stage,
        dtype=config.dtype,
    )


def optimization(config: Config, run: Run) -> Optimization:
    """The trainer's part of the run file."""
    return Optimization(
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_steps,
        betas=config.betas,
        weight_decay=config.weight_decay,
        gradient_clip=config.gradient_clip,
        zero_stage=config.zero_stage,
        dtype=config.dtype,
        temperature=run.training.temperature,
    )


def _set_threads(num_threads: int) -> None:
    import torch

    if num_threads:
        torch.set_num_threads(num_threads)


def _find(paths: RunPaths, mine: CheckpointState) -> Resumed:
    """The newest checkpoint, if it fits, or the start."""
    found = read_latest(paths.checkpoints)
    if found is None:
        return Resumed(state=mine)
    directory, state = found
    check_fits(directory, state, mine)
    return Resumed(state=msgspec.structs.replace(state, num_ranks=mine.num_ranks), directory=directory.name)


def _coordinator(
    settings: Settings, client: JournalClient, base: CheckpointState, paths: RunPaths, model: Any, stop: Stop
) -> Coordinator:
    """Rank 0's part, with the journal set to where `base` left it. Raises ConfigError, and leaves a predecessor alone, where
    `base` does not go on from what the run has trained."""
    run_id, may_start_over = new_run_id(), settings.config.start_over

    def identified() -> RunIdentity:
        versions: list[PolicyVersion] = []
        client.read_table(topics.POLICY_VERSIONS, versions.append)
        if not (base.run_id or may_start_over):
            check_untrained(versions, paths.checkpoints)
        return identify(run_id, base, versions)

    identified()
    check_input(base, client.input_id)
    client.take_over()
    identity = identified()  # the predecessor has published until now
    if not base.run_id and identity.lineage:
        logger.warning("no checkpoint: starting over from the initial policy abandoned_run=%s", identity.lineage[-1].run_id)
    past = PastOutcomes(base.step, identity.lineage)
    if identity.lineage:
        client.read_table(topics.OUTCOMES, past.observe)
    client.seek(base.positions)
    queue = GroupQueue(FinishedOffsets(base.positions, base.finished), past.replay, past.ended)
    publisher = Publisher(paths, model, identity, settings.config.keep_policies)
    base = msgspec.structs.replace(base, input_id=client.input_id)
    return Coordinator(settings, base, identity, queue, client, paths, publisher, stop.is_set)
