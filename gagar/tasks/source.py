"""The port of task sources: a table of the run file that makes a TaskSet."""

from collections.abc import Callable
from pathlib import Path

from gagar.config import Kind
from gagar.tasks.task import TaskSet


class TaskSource(Kind, frozen=True, kw_only=True):
    """`[tasks.train]` or `[tasks.heldout]`: where tasks come from."""

    def make(self, resolve: Callable[[str], Path]) -> TaskSet:
        """The tasks; `resolve` makes a path of the run file absolute. Raises ConfigError if they cannot be read."""
        raise NotImplementedError
