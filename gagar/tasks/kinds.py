"""The kinds of task sources, and the table `[tasks]`. A new kind is a TaskSource and a place in the union."""

from collections.abc import Callable
from pathlib import Path

from gagar.config import Table
from gagar.errors import ConfigError
from gagar.tasks.jsonl import Jsonl
from gagar.tasks.task import Task, TaskSet

TaskSourceKinds = Jsonl


class TasksTable(Table, frozen=True, kw_only=True):
    """[tasks]: what the agent is trained on, and what it is evaluated on."""

    train: TaskSourceKinds
    """Tasks that are trained on."""
    heldout: TaskSourceKinds
    """Tasks of the evaluation; no training sees them."""

    def make(self, resolve: Callable[[str], Path]) -> "Tasks":
        """The tasks of a run. Raises ConfigError if they cannot be read or a task is in both sets."""
        tasks = Tasks(self.train.make(resolve), self.heldout.make(resolve))
        both = set(tasks.train.ids) & set(tasks.heldout.ids)
        if both:
            raise ConfigError(
                f"tasks.heldout: expected tasks that are not in tasks.train, got {len(both)} of both, "
                f"{min(both)!r} among them; remove them from one set"
            )
        return tasks


class Tasks:
    """The tasks of a run."""

    def __init__(self, train: TaskSet, heldout: TaskSet) -> None:
        self.train = train
        self.heldout = heldout

    def find(self, task_id: str) -> Task | None:
        """The task of that id in either set, or none."""
        return self.train.find(task_id) or self.heldout.find(task_id)
