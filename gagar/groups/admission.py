"""Admission: which group to request next, so that staleness stays bounded and every held-out task is tried in every round.

In: outcomes and policy versions, in log order per key. Out: the next group, or none. Kept: one small integer for each training
group, one bit for each evaluation group. The cursor (what was requested) is the only thing that cannot be rebuilt; which
groups have ended is folded again from the compacted outcomes at each start.

The planned end is `num_steps` of the configuration, not a mark in a record: a finished run goes on when it is raised.

Order: the evaluation round that is due (at the start, every `evaluate_every` steps, at the planned end) goes before any
training group. At most (max_staleness + 1) x groups_per_step training groups are unresolved when one is requested.
"""

import hashlib
import logging
import re
from array import array
from collections.abc import Sequence

import msgspec

from gagar.errors import BadRecordError, GagarError
from gagar.groups.lineage import Lineage
from gagar.records import Outcome, PolicyVersion, Purpose

logger = logging.getLogger(__name__)

TRAINING_ID = re.compile(r"t-(\d+)")
EVALUATION_ID = re.compile(r"e-(\d+)-(\d+)")
UNRESOLVED, FINAL = 0, -1
"""Codes of the ledger; one above 0 is the number of the learner step that ended the group."""


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """What has been requested; committed with the requests."""

    next_training: int = 0
    """Index of the next training group."""
    round_step: int = -1
    """Step that names the newest evaluation round; -1 before the first."""
    next_evaluation: int = 0
    """Index of the round's next held-out task."""
    num_evaluations: int = 0
    """Evaluation groups requested in all."""

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Cursor":
        """The committed cursor, a fresh one if there is none; raises BadRecordError on another form."""
        if not data:
            return cls()
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise BadRecordError(f"sampler cursor: expected its MessagePack form, got {error}") from error


class AdmissionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds and schedules the requests."""

    max_unresolved: int
    """(max_staleness + 1) x groups_per_step."""
    evaluate_every: int
    """Steps between rounds; 0: at the start and at the end only."""
    num_heldout: int
    """Tasks of a round."""
    num_steps: int
    """Optimizer steps until the planned end."""


class NextGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group to request."""

    group_id: str
    purpose: Purpose
    index: int
    """Of the training group in the run, or of the held-out task in its set."""


class Ledger:
    """How each training group ended, as small integers; the count of unresolved ones follows the lineage."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._codes = array("i")
        self._numbers: dict[tuple[str, int], int] = {}
        self._counts: list[int] = [0]
        """Groups that each learner step ended, by its number; the first place is of no step."""
        self._steps: list[tuple[str, int]] = [("", -1)]
        self._num_final = 0
        self._num_learnt = 0
        """Groups that surviving learner steps ended."""

    @property
    def num_resolved(self) -> int:
        return self._num_final + self._num_learnt

    def record(self, index: int, outcome: Outcome) -> None:
        """The newest outcome of a group replaces what was known of it, as compaction would."""
        if index >= len(self._codes):
            self._codes.extend([UNRESOLVED] * (index + 1 - len(self._codes)))
        self._count(self._codes[index], -1)
        self._codes[index] = self._number(outcome) if outcome.run_id else FINAL
        self._count(self._codes[index], 1)

    def recount(self) -> None:
        """After the lineage has changed."""
        pairs = zip(self._steps[1:], self._counts[1:], strict=True)
        self._num_learnt = sum(count for step, count in pairs if self._lineage.survives(*step))

    def _number(self, outcome: Outcome) -> int:
        step = (outcome.run_id, outcome.step)
        if step not in self._numbers:
            self._numbers[step] = len(self._steps)
            self._steps.append(step)
            self._counts.append(0)
        return self._numbers[step]

    def _count(self, code: int, change: int) -> None:
        if code == FINAL:
            self._num_final += change
        elif code != UNRESOLVED:
            self._counts[code] += change
            self._num_learnt += change if self._lineage.survives(*self._steps[code]) else 0


class Admission:
    """The state: a cursor, and what the tables say."""

    def __init__(self, limits: AdmissionLimits, cursor: Cursor) -> None:
        self.cursor = cursor
        self._limits = limits
        self._lineage = Lineage()
        self._ledger = Ledger(self._lineage)
        self._evaluated: dict[int, int] = {}
        """By round: a bit for each held-out task whose group has ended."""

    @property
    def newest(self) -> PolicyVersion | None:
        return self._lineage.newest

    @property
    def num_unresolved(self) -> int:
        """Training groups in flight."""
        return self.cursor.next_training - self._ledger.num_resolved

    @property
    def num_unresolved_evaluations(self) -> int:
        """Evaluation groups in flight."""
        return self.cursor.num_evaluations - sum(bits.bit_count() for bits in self._evaluated.values())

    @property
    def is_done(self) -> bool:
        """The planned end has come, its evaluation is requested, and every group requested has ended."""
        is_complete = self._is_over and self._due_round() is None
        return is_complete and self.num_unresolved == 0 and self.num_unresolved_evaluations == 0

    def observe_version(self, version: PolicyVersion) -> None:
        if self._lineage.observe(version):
            self._ledger.recount()

    def observe_outcome(self, outcome: Outcome) -> None:
        """Frees the group's place. Raises GagarError for a group that this cursor has not requested."""
        if matched := TRAINING_ID.fullmatch(outcome.group_id):
            index = int(matched[1])
            self._check_requested(outcome, index < self.cursor.next_training)
            self._ledger.record(index, outcome)
        elif matched := EVALUATION_ID.fullmatch(outcome.group_id):
            step, index = int(matched[1]), int(matched[2])
            self._check_requested(outcome, (step, index) < (self.cursor.round_step, self.cursor.next_evaluation))
            self._evaluated[step] = self._evaluated.get(step, 0) | 1 << index
        else:
            logger.warning("outcome ignored group=%s reason=not_of_a_sampler", outcome.group_id)

    def next_group(self) -> NextGroup | None:
        """The group to request now; moves the cursor past it."""
        if self.newest is None:
            return None
        due = self._due_round()
        if due is not None:
            return self._next_evaluation(due)
        if self._is_over or self.num_unresolved >= self._limits.max_unresolved:
            return None
        index = self.cursor.next_training
        self.cursor = msgspec.structs.replace(self.cursor, next_training=index + 1)
        return NextGroup(group_id=f"t-{index:06d}", purpose="training", index=index)

    @property
    def _is_over(self) -> bool:
        """Every step that is planned now has been made."""
        return self.newest is not None and self.newest.step >= self._limits.num_steps

    def _due_round(self) -> int | None:
        """The step of the round that is to be requested or is half requested."""
        cursor = self.cursor
        if cursor.round_step >= 0 and cursor.next_evaluation < self._limits.num_heldout:
            return cursor.round_step
        if self.newest is None or self.newest.step <= cursor.round_step:
            return None
        if cursor.round_step < 0 or self._is_over:
            return self.newest.step
        every = self._limits.evaluate_every
        is_due = every > 0 and self.newest.step // every > cursor.round_step // every
        return self.newest.step if is_due else None

    def _next_evaluation(self, step: int) -> NextGroup:
        index = self.cursor.next_evaluation if step == self.cursor.round_step else 0
        self.cursor = msgspec.structs.replace(
            self.cursor, round_step=step, next_evaluation=index + 1, num_evaluations=self.cursor.num_evaluations + 1
        )
        return NextGroup(group_id=f"e-{step:06d}-{index:04d}", purpose="evaluation", index=index)

    def _check_requested(self, outcome: Outcome, was_requested: bool) -> None:
        if not was_requested:
            raise GagarError(
                f"outcome of {outcome.group_id}: expected a group before the sampler's cursor {self.cursor}, got a later one; "
                "the committed cursor was lost: start a run of another name"
            )


class TaskOrder:
    """Tasks in a shuffled order for each epoch: a pure function of seed and index, the same in every process and release."""

    def __init__(self, task_ids: Sequence[str], seed: int) -> None:
        self._task_ids = task_ids
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def __getitem__(self, index: int) -> str:
        """Task of the training group `index`."""
        epoch, place = divmod(index, len(self._task_ids))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = sorted(range(len(self._task_ids)), key=lambda i: stable_hash(f"{self._seed}/{epoch}/{i}"))
        return self._task_ids[self._order[place]]


def stable_hash(text: str) -> int:
    """63 bits that are the same everywhere; for seeds and shuffles."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
