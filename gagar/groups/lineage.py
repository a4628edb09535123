"""Which optimizer steps count: the lineage that the newest policy version names.

A learner that crashed goes back to a checkpoint under a new run id; what the abandoned steps had written is superseded.
"""

from gagar.records import PolicyVersion


class Lineage:
    """Folds `PolicyVersion` records in log order."""

    def __init__(self) -> None:
        self.newest: PolicyVersion | None = None
        self._last_steps: dict[str, int] = {}
        """Of the runs that the newest one continues, the last step that survives."""

    def observe(self, version: PolicyVersion) -> bool:
        """Takes a version in; true if it changed which steps survive."""
        if version.run_id in self._last_steps:
            return False  # a late version of a learner that has been replaced
        is_other_run = self.newest is None or version.run_id != self.newest.run_id
        self.newest = version
        if is_other_run:
            self._last_steps = {entry.run_id: entry.last_step for entry in version.lineage}
        return is_other_run

    def survives(self, run_id: str, step: int) -> bool:
        """Whether what `run_id` did at `step` counts. Work of a run that has published nothing yet does not, until it has."""
        if self.newest is not None and run_id == self.newest.run_id:
            return True
        return step <= self._last_steps.get(run_id, -2)
