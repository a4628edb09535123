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
from types import FrameType
from typing import Any

import msgspec

from consumers.learner.client import JournalClient
from consumers.learner.coordinator import Coordinator, Limits
from consumers.learner.facts import identify, replay_steps
from consumers.learner.loading import TokenLoader
from consumers.learner.plan import Directive, LoadReport
from consumers.learner.publishing import Places, Publisher, new_run_id
from consumers.learner.queue import FinishedOffsets, GroupQueue
from consumers.learner.stage import Config, Settings
from gagar.config import Run
from gagar.errors import ConfigError, GagarError
from gagar.processes.forced_end import called_off, end_by_force_after
from gagar.stream.handlers import References
from gagar.stream.journal import Journal
from gagar.training.background import Background
from gagar.training.batch import collate
from gagar.training.checkpoint import CheckpointState, check_fits, read_latest
from gagar.training.deepspeed import Optimization, StepResult, Trainer, open_ranks
from gagar.training.losses.ppo_clip import PpoClipLoss
from gagar.training.model import describe, load_model
from gagar.training.packing import pack
from gagar.training.ranks import Ranks
from topology import topics
from topology.resources import Resources

logger = logging.getLogger(__name__)
LOAD_WAIT_S = 0.2
"""A round's wait for reads that are under way."""
STOP_S = 10.0
"""From SIGTERM to an exit by force, before the parent of several ranks loses patience."""


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
        places: Places,
        coordinator: Coordinator | None,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._trainer = trainer
        self._loader = loader
        self._places = places
        self._coordinator = coordinator

    def run(self) -> None:
        """Round after round until rank 0 says stop."""
        state = self._trainer.gather_state()
        if self._coordinator:
            self._coordinator.start(state)
        while self.round():
            pass

    def round(self) -> bool:
        """One round; false if it was the last."""
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
        self._trainer.save(self._places.checkpoints / name)
        self._ranks.barrier()
        if self._coordinator:
            self._coordinator.finish_checkpoint(name)


class Stop:
    """SIGTERM and SIGINT, and the exit by force behind them."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def is_set(self) -> bool:
        return self._event.is_set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._event.is_set():
            self._event.set()
            end_by_force_after(STOP_S)


def run_rank(settings: Settings) -> None:
    """This process's rank from set-up to its end. Raises ConfigError before anything is written or connected to."""
    from topology.stages import LEARNER

    is_first = os.environ.get("RANK", "0") == "0"
    stop = Stop()
    stop.install()
    resources = Resources(settings.run)
    with called_off():
        if is_first:
            journal = resources.journal(LEARNER)
            train(settings, journal, journal.references, stop)
        else:
            train(settings, None, resources.references(), stop)


def train(settings: Settings, journal: Journal | None, references: References, stop: Stop) -> None:
    """The rank over its ports; `journal` on rank 0 only, other ranks open `references` themselves."""
    config, run = settings.config, settings.run
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != str(config.num_ranks):
        raise ConfigError(f"learner.num_ranks: expected as many as were started, {world_size}, got {config.num_ranks}")
    _set_threads(config.num_threads)
    places = Places.of(run)
    model = load_model(places.policy, config.dtype)
    mine = CheckpointState(
        run_id="",
        step=0,
        model=describe(model),
        num_ranks=config.num_ranks,
        zero_stage=config.zero_stage,
        dtype=config.dtype,
    )
    _find(places, mine)
    ranks = open_ranks(config.collective_timeout_s)
    background = Background(f"learner log {ranks.rank}")
    try:
        client = JournalClient(journal, background) if journal else None
        _open(client, references, background)
        resumed = ranks.broadcast(lambda: _find(places, mine), Resumed)
        trainer = Trainer(model, optimization(config, run), PpoClipLoss(config.clip_low, config.clip_high), ranks)
        if resumed.directory:
            trainer.load(places.checkpoints / resumed.directory)
        vocab_size: Any = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        loader = TokenLoader(references, background, ranks.rank, vocab_size)
        coordinator = _coordinator(settings, client, resumed.state, places, model, stop) if client else None
        Rank(config, ranks, trainer, loader, places, coordinator).run()
        _close(client, references, background)
        trainer.close()
        logger.info("learner rank stopped rank=%d", ranks.rank)
    finally:
        background.close()


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


def _find(places: Places, mine: CheckpointState) -> Resumed:
    """The newest checkpoint, if it fits, or the start."""
    found = read_latest(places.checkpoints)
    if found is None:
        return Resumed(state=mine)
    directory, state = found
    check_fits(directory, state, mine)
    return Resumed(state=msgspec.structs.replace(state, num_ranks=mine.num_ranks), directory=directory.name)


def _open(client: JournalClient | None, references: References, background: Background) -> None:
    if client:
        client.open()
    else:
        background.call(references.open(), timeout_s=60.0, what="references")  # type: ignore[attr-defined]


def _close(client: JournalClient | None, references: References, background: Background) -> None:
    if client:
        client.close()
    else:
        background.call(references.close(), timeout_s=5.0, what="references")  # type: ignore[attr-defined]


def _coordinator(
    settings: Settings, client: JournalClient, base: CheckpointState, places: Places, model: Any, stop: Stop
) -> Coordinator:
    """Rank 0's part, with the journal set to where `base` left it."""
    config, run = settings.config, settings.run
    identity = identify(new_run_id(), base, client.read_table(topics.POLICY_VERSIONS))
    if not base.run_id and identity.lineage:
        logger.warning("no checkpoint: starting over from the initial policy abandoned_run=%s", identity.lineage[-1].run_id)
    replay = replay_steps(client.read_table(topics.OUTCOMES), base.step) if identity.lineage else {}
    client.seek(base.positions)
    limits = Limits(
        training=run.training,
        num_ranks=config.num_ranks,
        prefetch_bytes=config.prefetch_bytes,
        checkpoint_every=config.checkpoint_every,
        keep_checkpoints=config.keep_checkpoints,
        max_non_finite=config.max_non_finite,
    )
    queue = GroupQueue(FinishedOffsets(base.positions, base.finished), replay)
    publisher = Publisher(places, model, identity, config.keep_policies)
    return Coordinator(limits, base, identity, queue, client, places, publisher, stop.is_set)


def main() -> None:
    """A rank started by `consumers.learner.stage`: its settings come on standard input."""
    import sys

    from gagar.training.launch import receive_payload

    settings = msgspec.json.decode(receive_payload(), type=Settings)
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    try:
        run_rank(settings)
    except GagarError as error:
        logger.error("learner rank ended error=%s", error)
        raise SystemExit(error.exit_code) from error
    # All is committed and closed; what is left would only be taken apart, in seconds on a busy machine.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
