"""What came of a replay, from its directory: counts, and with `--diff` what has changed against what was recorded.

In: the answers of a replay, the recorded ones. Out: a `ReplayResult`; every difference as a line of `differences.jsonl`. Kept:
the ids of the groups that have changed; a few differences to show.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from gagar.records import DeadLetter, Record
from gagar.replay.answers import StageAnswer, read_answers
from gagar.replay.comparing import ChangeTally, FieldChange, FieldTally, changes_between, tag_of, title_of
from gagar.replay.plan import ReplayPlan
from gagar.replay.recorded import Recorded, name_of
from gagar.replay.selection import task_of
from gagar.stream.spec import Stage

DIFFERENCES = "differences.jsonl"
MAX_SHOWN = 20
"""Differences, missing names and tasks that a result holds; the file holds all differences."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that is not what was recorded; a line of the file."""

    input: str
    """Where the record lies that was answered."""
    key: str
    """Its group."""
    task_id: str
    changes: list[FieldChange]


class ReplayResult(msgspec.Struct, kw_only=True):
    """What came of a replay."""

    stage: str
    run: str
    directory: str
    settings: list[str]
    """How those of the replay differ from the run's. Example: `grader.kind: was "rules", now "none"`."""
    records: int = 0
    """Answers that were made: one for each input, or group, that was chosen."""
    dead_letters: int = 0
    """Answers among them that would be dead letters."""
    outputs: dict[str, int] = {}
    """Answers by the kind of record. Example: `verdict/1`."""
    missing: int = 0
    """Recorded answers, or groups that were chosen, whose inputs are not there any more, or not all of them."""
    missing_names: list[str] = []
    """The first of these."""
    retired: list[str] = []
    """What retention has taken of the inputs."""
    is_compared: bool = False
    """Whether the counts below mean anything."""
    equal: int = 0
    changed: int = 0
    unrecorded: int = 0
    """Answers that were not recorded: the stage had not come to them, or retention has taken its answers."""
    groups_changed: int = 0
    fields: dict[str, FieldTally] = {}
    """What has changed, by field. Example: `members.weight`."""
    tasks: dict[str, int] = {}
    """Changed answers by task, of the tasks with the most."""
    differences: list[Difference] = []
    """The first of these."""


class Judge:
    """Folds the answers of a replay into a result."""

    def __init__(self, stage: Stage, plan: ReplayPlan, directory: Path, settings: list[str], recorded: Recorded | None) -> None:
        """`recorded`: None if nothing is to be compared."""
        self._stage = stage
        self._recorded = recorded
        self._directory = directory
        self._result = ReplayResult(
            stage=stage.name,
            run=plan.run,
            directory=str(directory),
            settings=settings,
            retired=plan.retired(),
            is_compared=recorded is not None,
        )
        self._unseen = set(plan.selection.groups or ())
        self._tally = ChangeTally()
        self._outputs: Counter[str] = Counter()

    def judge(self, note: Callable[[int], None]) -> ReplayResult:
        """Reads all answers; `note` is told how many by now."""
        with (self._directory / DIFFERENCES).open("wb") as file:
            for answer in read_answers(self._directory):
                self._count(answer)
                if self._recorded is not None and not answer.is_partial:
                    self._compare(answer, self._recorded, file)
                note(self._result.records)
        return self._ended()

    def _count(self, answer: StageAnswer) -> None:
        result = self._result
        self._unseen.discard(answer.key)
        result.records += 1
        result.dead_letters += bool(answer.error)
        self._outputs.update(map(tag_of, answer.outputs))
        if answer.is_partial:
            self._miss(answer.key)
            if self._recorded is not None:
                self._recorded.take(name_of(answer, self._stage))

    def _compare(self, answer: StageAnswer, recorded: Recorded, file: IO[bytes]) -> None:
        result = self._result
        was = recorded.take(name_of(answer, self._stage))
        if was is None:
            result.unrecorded += 1
            return
        changes = _changes(was, answer)
        if not changes:
            result.equal += 1
            return
        result.changed += 1
        task_id = task_of(was) or next(map(task_of, answer.outputs), "")
        difference = Difference(input=str(answer.input), key=answer.key, task_id=task_id, changes=changes)
        file.write(msgspec.json.encode(difference) + b"\n")
        self._tally.add(answer.key, task_id, changes)
        if len(result.differences) < MAX_SHOWN:
            result.differences.append(difference)

    def _miss(self, name: str) -> None:
        self._result.missing += 1
        if len(self._result.missing_names) < MAX_SHOWN:
            self._result.missing_names.append(name)

    def _ended(self) -> ReplayResult:
        for name in self._recorded.missing() if self._recorded is not None else ():
            self._unseen.discard(name)
            self._miss(name)
        for group_id in sorted(self._unseen):
            self._miss(group_id)
        return msgspec.structs.replace(
            self._result,
            outputs=dict(self._outputs),
            groups_changed=self._tally.num_groups,
            fields=self._tally.fields,
            tasks=dict(self._tally.tasks.most_common(MAX_SHOWN)),
        )


def _changes(was: Record, answer: StageAnswer) -> list[FieldChange]:
    """A dead letter has no other fields: what the error says may tell of the moment."""
    is_dead = isinstance(was, DeadLetter)
    if is_dead or answer.error:
        before = was.error.strip().splitlines()[-1] if isinstance(was, DeadLetter) and was.error.strip() else ""
        return [] if is_dead and answer.error else [FieldChange(path="dead_letter", before=before, now=answer.error)]
    if len(answer.outputs) != 1:
        return [FieldChange(path="record", before=title_of(was), now=", ".join(map(title_of, answer.outputs)))]
    return changes_between(was, answer.outputs[0])
