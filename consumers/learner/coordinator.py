"""Rank 0: reads the groups, decides every round of the ranks, writes outcomes and policy versions.

In: advantages from the journal, the ranks' reports, a step's result. Out: Directives; records, in transactions. Everything is
decided before a step: a group is chosen, read by all its ranks, found good, and only then part of a batch. Drops are committed
at once, since each frees a place in the sampler's admission; a step's outcomes, its version and the positions are one
transaction.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from consumers.learner.client import JournalClient
from consumers.learner.config import Settings
from consumers.learner.facts import RunIdentity, batch_metrics, dropped, trained
from consumers.learner.plan import Directive, GroupLoad, LoadReport, MemberLoad, oldest_version
from consumers.learner.publishing import Publisher, RunPaths, keep_evidence
from consumers.learner.queue import Dropped, GroupQueue, Waiting
from gagar.errors import GagarError
from gagar.records import DropReason, GroupAdvantages, Outcome, PolicyVersion
from gagar.stream.handlers import Output, Tombstone
from gagar.training.checkpoint import CheckpointState, complete
from gagar.training.packing import balance

if TYPE_CHECKING:
    from torch import Tensor

    from gagar.training.deepspeed import StepResult

logger = logging.getLogger(__name__)
BYTES_PER_TOKEN = 13
"""id, mask, log-probability, version."""
IDLE_S = 0.5
"""A poll when there is nothing else to do; also the pace at which waiting ranks hear from rank 0."""
REPLAY_WAIT_S = 30.0
"""How long the groups of an abandoned future are waited for, before others may take their place."""


class Chosen:
    """A group on its way into a batch."""

    def __init__(self, waiting: Waiting, load: GroupLoad) -> None:
        self.waiting = waiting
        self.load = load
        self.unready = {member.rank for member in load.members}
        """Ranks that have not reported it as loaded."""

    @property
    def num_bytes(self) -> int:
        return BYTES_PER_TOKEN * sum(member.length for member in self.load.members)


class Coordinator:
    """The decisions of one run. `base` is the state that the run starts from; `is_stopping` says that SIGTERM has come."""

    def __init__(
        self,
        settings: Settings,
        base: CheckpointState,
        identity: RunIdentity,
        queue: GroupQueue,
        journal: JournalClient,
        paths: RunPaths,
        publisher: Publisher,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._config = settings.config
        self._training = settings.run.training
        self._identity = identity
        self._queue = queue
        self._journal = journal
        self._paths = paths
        self._publisher = publisher
        self._is_stopping = is_stopping
        self.step = base.step
        self._num_non_finite = base.num_non_finite
        self._num_in_a_row = 0
        self._chosen: list[Chosen] = []
        self._forget: list[str] = []
        self._state = base
        self._has_checkpoint = bool(base.run_id)
        self._saved_step = -1
        self._waiting_since = time.monotonic()
        self._wait_s = 0.0
        self._started_at = time.monotonic()
        self._batch: list[Chosen] = []

    @property
    def is_over(self) -> bool:
        """The planned end has been reached: what still comes is ended, not trained."""
        return self.step >= self._training.num_steps

    def start(self, state: dict[str, "Tensor"]) -> None:
        """Publishes the policy that the run starts from, before anything else."""
        version = self._publisher.write(self.step, state, is_last=self.is_over)
        self._publish([], version)
        self._remember()
        logger.info("learner started run=%s step=%d lineage=%s", self._identity.run_id, self.step, self._identity.lineage)

    def next_directive(self) -> Directive:
        """What all ranks do now. Called on rank 0 once a round."""
        if self._is_stopping():
            is_saved = self._saved_step == self.step
            return Directive(kind="stop", checkpoint="" if is_saved else self._checkpoint_name(), forget=self._forgotten())
        if not self._has_checkpoint:  # from now on a start without a checkpoint is one elsewhere, or after a loss
            return Directive(kind="wait", checkpoint=self._checkpoint_name(), forget=self._forgotten())
        self._queue.add(self._journal.poll(0.0 if self._is_busy else IDLE_S))
        if self.is_over:
            self._end_all()
            return Directive(kind="wait", forget=self._forgotten())
        drops = self._queue.drop_hopeless(self.step, self._training.max_staleness)
        load = self._choose(drops)
        self._drop(drops)
        return self._direct(load)

    def observe(self, reports: Sequence[LoadReport]) -> None:
        """Takes in how the reads of a round went; a group with a bad record ends as lost."""
        bad: dict[str, str] = {}
        for rank, report in enumerate(reports):
            bad.update(report.bad)
            loaded = set(report.loaded)
            for chosen in self._chosen:
                if chosen.load.group_id in loaded:
                    chosen.unready.discard(rank)
        lost = [chosen for chosen in self._chosen if chosen.load.group_id in bad]
        for chosen in lost:
            logger.warning("group lost group=%s reason=%s", chosen.load.group_id, bad[chosen.load.group_id])
        self._chosen = [chosen for chosen in self._chosen if chosen not in lost]
        self._forget += [chosen.load.group_id for chosen in lost]
        self._drop([Dropped(chosen.waiting, "lost") for chosen in lost])

    def finish_step(self, result: "StepResult", state: dict[str, "Tensor"], step_s: float) -> None:
        """Writes what a step has brought. Called after every `train`."""
        batch, self._batch = self._batch, []
        groups = [chosen.waiting.group for chosen in batch]
        self._forget += [group.group_id for group in groups]
        if not result.is_applied:
            self._skip(batch, result)
            return
        self._num_in_a_row = 0
        self.step += 1
        own = {"step_s": step_s, "wait_s": self._wait_s, "num_non_finite": float(self._num_non_finite)}
        metrics = {**batch_metrics(groups, self.step), **result.metrics, **own}
        version = self._publisher.write(self.step, state, is_last=self.is_over, metrics=metrics)
        now = time.time()
        self._finish(batch)
        self._publish([trained(group, self._identity.run_id, self.step, now) for group in groups], version)
        self._remember()
        self._waiting_since = time.monotonic()
        _log_step(version)

    def finish_checkpoint(self, name: str) -> None:
        """Makes the checkpoint that all ranks have written the newest one."""
        complete(self._paths.checkpoints / name, self._state, self._config.keep_checkpoints)
        self._has_checkpoint, self._saved_step = True, self._state.step
        logger.info("checkpoint saved path=%s", self._paths.checkpoints / name)

    @property
    def _is_busy(self) -> bool:
        """A batch is ready, or reads are under way: no time to wait for more groups."""
        size = self._training.groups_per_step
        return len(self._chosen) >= size or any(chosen.unready for chosen in self._chosen)

    def _direct(self, load: list[GroupLoad]) -> Directive:
        size = self._training.groups_per_step
        batch = self._chosen[:size]
        if len(batch) < size or any(chosen.unready for chosen in batch):
            return Directive(kind="wait", load=load, forget=self._forgotten())
        self._batch, self._chosen = batch, self._chosen[size:]
        self._wait_s = time.monotonic() - self._waiting_since
        step = self.step + 1
        is_due = step % self._config.checkpoint_every == 0 or step >= self._training.num_steps
        return Directive(
            kind="train",
            load=load,
            forget=self._forgotten(),
            train=[chosen.load.group_id for chosen in batch],
            step=step,
            checkpoint=self._checkpoint_name(step) if is_due else "",
        )

    def _choose(self, drops: list[Dropped]) -> list[GroupLoad]:
        """Groups to read now: those of the next step, and of later ones as far as the memory bound allows."""
        is_waiting_for_them = time.monotonic() - self._started_at < REPLAY_WAIT_S
        if self._queue.num_missing and is_waiting_for_them:
            return []
        size, training = self._training.groups_per_step, self._training
        load: list[GroupLoad] = []
        while self._has_room() and self.step + len(self._chosen) // size < training.num_steps:
            taken = self._queue.take(self.step + len(self._chosen) // size, training.max_staleness)
            if taken is None:
                break
            if isinstance(taken, Dropped):
                drops.append(taken)
                continue
            chosen = Chosen(taken, self._assign(taken.group))
            self._chosen.append(chosen)
            load.append(chosen.load)
        return load

    def _has_room(self) -> bool:
        ahead = self._chosen[self._training.groups_per_step :]
        is_needed = len(self._chosen) < self._training.groups_per_step
        return is_needed or sum(chosen.num_bytes for chosen in ahead) < self._config.prefetch_bytes * self._config.num_ranks

    def _assign(self, group: GroupAdvantages) -> GroupLoad:
        """The group's members, each to a rank, so that the ranks of its batch carry alike."""
        size = self._training.groups_per_step
        batch = self._chosen[len(self._chosen) // size * size :]
        loads = [0] * self._config.num_ranks
        for chosen in batch:
            for member in chosen.load.members:
                loads[member.rank] += member.length
        members = [member for member in group.members if member.attempt.num_sampled_tokens > 0]
        lengths = [member.attempt.num_prompt_tokens + member.attempt.num_sampled_tokens for member in members]
        owners = {index: rank for rank, owned in enumerate(balance(lengths, len(loads), loads)) for index in owned}
        return GroupLoad(
            group_id=group.group_id,
            members=[
                MemberLoad(
                    sample_index=member.sample_index,
                    tokens=member.attempt.sampled_tokens(),
                    advantage=member.advantage,
                    length=lengths[index],
                    num_sampled=member.attempt.num_sampled_tokens,
                    rank=owners[index],
                )
                for index, member in enumerate(members)
            ],
        )

    def _end_all(self) -> None:
        """After the planned end: whatever was chosen, waits or comes ends without training."""
        rest = [chosen.waiting for chosen in self._chosen] + self._queue.take_all()
        self._forget += [chosen.load.group_id for chosen in self._chosen]
        self._chosen = []
        self._drop([Dropped(waiting, "ended") for waiting in rest])

    def _skip(self, batch: Sequence[Chosen], result: "StepResult") -> None:
        """A batch without a finite loss and gradient: evidence, outcomes, and the end after too many in a row."""
        self._num_non_finite += 1
        self._num_in_a_row += 1
        numbers = {**result.metrics, "grad_norm": result.grad_norm, "step": self.step + 1}
        name = f"{self._identity.run_id}-{self.step + 1}-{self._num_non_finite}"
        path = keep_evidence(self._paths, name, [chosen.load for chosen in batch], numbers)
        logger.warning("step skipped step=%d grad_norm=%s evidence=%s", self.step + 1, result.grad_norm, path)
        self._drop([Dropped(chosen.waiting, "non_finite") for chosen in batch])
        if self._num_in_a_row >= self._config.max_non_finite:
            raise GagarError(
                f"step {self.step + 1}: expected a finite loss and gradient, got none {self._num_in_a_row} times in a row; "
                f"see {path}, or lower learner.learning_rate"
            )

    def _drop(self, drops: Sequence[Dropped]) -> None:
        if not drops:
            return
        now, step = time.time(), self.step + 1
        outputs = []
        for waiting, reason in drops:
            _log_drop(waiting.group, reason, step)
            self._queue.progress.finish(waiting.ref)
            outputs.append(dropped(waiting.group, reason, self._identity.run_id, step, now))
        self._commit(outputs)

    def _finish(self, batch: Sequence[Chosen]) -> None:
        for chosen in batch:
            self._queue.progress.finish(chosen.waiting.ref)

    def _publish(self, outcomes: Sequence[Outcome], version: PolicyVersion) -> None:
        """A version, the outcomes of its step, and the ends of versions whose weights go: one transaction."""
        retired = self._publisher.retired(version)
        self._commit([*outcomes, version, *(Tombstone(of=old) for old in retired)])
        self._publisher.remove(retired)

    def _commit(self, outputs: Sequence[Output]) -> None:
        self._journal.commit(outputs, self._queue.progress.positions())

    def _remember(self) -> None:
        """Keeps what a checkpoint of this step holds. Drops that come later carry the next step, which a restart does again."""
        progress = self._queue.progress
        self._state = msgspec.structs.replace(
            self._state,
            run_id=self._identity.run_id,
            lineage=self._identity.lineage,
            step=self.step,
            positions=progress.positions(),
            finished=progress.finished(),
            num_non_finite=self._num_non_finite,
        )

    def _checkpoint_name(self, step: int | None = None) -> str:
        return f"{self._identity.run_id}-{self.step if step is None else step}"

    def _forgotten(self) -> list[str]:
        forget, self._forget = self._forget, []
        return forget


def _log_drop(group: GroupAdvantages, reason: DropReason, step: int) -> None:
    logger.warning(
        "group dropped group=%s reason=%s oldest_version=%d step=%d", group.group_id, reason, oldest_version(group), step
    )


def _log_step(version: PolicyVersion) -> None:
    metrics: Mapping[str, float] = version.metrics
    names = ("loss", "reward_mean", "grad_norm", "clip_fraction", "staleness_mean", "step_s", "wait_s")
    text = " ".join(f"{name}={metrics[name]:.4g}" for name in names if name in metrics)
    logger.info("step trained step=%d %s", version.step, text)
