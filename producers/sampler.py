"""Sampler: asks for groups of attempts, as many as bounded staleness admits, and for the evaluations.

Input   outcomes, policy-versions  as tables: what has ended, which policy is the newest
Output  rollout-requests           the requests of one group at a time, in one transaction
State   a cursor in the committed offset's metadata; the rest is rebuilt from the tables
"""

import logging
from collections.abc import Sequence

from gagar.config import Table, TrainingTable
from gagar.groups.admission import Admission, AdmissionLimits, Cursor, NextGroup, TaskOrder, stable_hash
from gagar.records import Outcome, PolicyVersion, Record, RolloutRequest
from gagar.stream.handlers import Source
from topology.resources import Resources

logger = logging.getLogger(__name__)


class Config(Table, frozen=True, kw_only=True):
    """[sampler] in the run file: nothing of its own; [training] and [tasks] say what it asks for."""


class Sampler(Source):
    """Makes the requests of one group after another."""

    def __init__(self, training: TrainingTable, seed: int, train_ids: Sequence[str], heldout_ids: Sequence[str]) -> None:
        self._training = training
        self._seed = seed
        self._order = TaskOrder(train_ids, seed)
        self._heldout_ids = heldout_ids
        self._limits = AdmissionLimits(
            max_unresolved=(training.max_staleness + 1) * training.groups_per_step,
            evaluate_every=training.evaluate_every,
            num_heldout=len(heldout_ids),
            num_steps=training.num_steps,
        )
        self._admission = Admission(self._limits, Cursor())

    def restore(self, cursor: bytes) -> None:
        self._admission = Admission(self._limits, Cursor.from_bytes(cursor))
        logger.info("sampler restored cursor=%s", self._admission.cursor)

    def observe(self, record: Record) -> None:
        if isinstance(record, Outcome):
            self._admission.observe_outcome(record)
        elif isinstance(record, PolicyVersion):
            self._admission.observe_version(record)

    def next_unit(self) -> tuple[Sequence[RolloutRequest], bytes] | None:
        """The requests of the next group."""
        group = self._admission.next_group()
        if group is None:
            return None
        newest = self._admission.newest
        step = newest.step if newest else 0
        return self._requests(group, step), self._admission.cursor.to_bytes()

    @property
    def is_done(self) -> bool:
        return self._admission.is_done

    def _requests(self, group: NextGroup, step: int) -> list[RolloutRequest]:
        is_training = group.purpose == "training"
        size = self._training.group_size if is_training else self._training.evaluation_group_size
        return [
            RolloutRequest(
                group_id=group.group_id,
                sample_index=sample_index,
                group_size=size,
                task_id=self._order[group.index] if is_training else self._heldout_ids[group.index],
                purpose=group.purpose,
                seed=stable_hash(f"{self._seed}/{group.group_id}/{sample_index}"),
                step=step if is_training else self._admission.cursor.round_step,
                deadline_s=self._training.rollout_deadline_s,
                agent_timeout_s=self._training.agent_timeout_s,
            )
            for sample_index in range(size)
        ]


def make(resources: Resources, config: Config) -> Source:
    """The stage's handler; raises ConfigError if the tasks cannot be read."""
    run, tasks = resources.run, resources.tasks
    return Sampler(run.training, run.run.seed, tasks.train.ids, tasks.heldout.ids)
