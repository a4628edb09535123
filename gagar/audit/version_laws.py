"""The laws of policy versions: one learner at a time, versions that ascend by one, lineages that name what was there.

In: `PolicyVersion`s in log order. Kept: a few numbers for each run, which is a start of the learner.

A version whose weights are removed ends with a tombstone, and compaction takes both; the oldest go first. So what the log still
holds of a run has no holes, and as long as its first record is the topic's first, nothing is missing from it at all.
"""

from collections.abc import Iterator, Sequence

from gagar.audit.findings import Finding, Law
from gagar.groups.lineage import Lineage
from gagar.records import LineageEntry, PolicyVersion


class Versions:
    """Folds the versions of all runs."""

    def __init__(self) -> None:
        self.lineage = Lineage()
        self._first: dict[str, int] = {}
        """Of each run the first version that the log holds."""
        self._last: dict[str, PolicyVersion] = {}
        """Of each run the version that it published last."""
        self._newest_run = ""
        self._is_whole = True
        """Nothing has been removed from the log."""

    def observe(self, version: PolicyVersion, offset: int) -> Iterator[Finding]:
        """Takes in the version at an offset of the topic; what is wrong with it."""
        before = self._last.get(version.run_id)
        if before is None:
            self._is_whole &= bool(self._last) or offset == 0
            found = [*broken_lineage(version), *self._broken_start(version)]
            self._first[version.run_id] = version.version
            self._newest_run = version.run_id
        else:
            found = [*broken_succession(version, before), *self._broken_turn(version)]
        self._last[version.run_id] = version
        self.lineage.observe(version)
        yield from found

    def holds(self, run_id: str, step: int) -> bool:
        """Whether a version of that run and step was there, as far as the log can tell."""
        last = self._last.get(run_id)
        if last is None:
            return not self._is_whole
        return step <= last.version and (step >= self._first[run_id] or not self._is_whole)

    def _broken_turn(self, version: PolicyVersion) -> Iterator[Finding]:
        if version.run_id != self._newest_run:
            yield Finding(Law.ONE_LEARNER, f"expected none after the first of run {self._newest_run}, got one")

    def _broken_start(self, version: PolicyVersion) -> Iterator[Finding]:
        """What is wrong with the first version of a run: it is the one that the run goes on from."""
        base = version.lineage[-1].last_step if version.lineage else 0
        if version.version != base and self._is_whole:
            text = f"expected its run to begin with version {base}, where it goes on from, got this one"
            yield Finding(Law.VERSION_BASE, text)
        if self._last and not version.lineage:
            text = f"expected a lineage that goes back to run {self._newest_run} or one before, got none"
            yield Finding(Law.LINEAGE_ROOT, text)
        yield from self._broken_entries(version.lineage)

    def _broken_entries(self, lineage: Sequence[LineageEntry]) -> Iterator[Finding]:
        """What a new run's lineage says of the runs before it that was not so."""
        for entry in lineage:
            if not self.holds(entry.run_id, entry.last_step):
                text = f"expected a lineage of versions that exist, got {entry.run_id}@{entry.last_step}"
                yield Finding(Law.LINEAGE_RESOLVES, text)
        before = self._last.get(lineage[-1].run_id) if lineage else None
        if before is not None and lineage[:-1] != before.lineage:
            expected, got = _named(before.lineage), _named(lineage)
            text = f"expected the lineage of the run before, {expected}, and that run, got {got}"
            yield Finding(Law.LINEAGE_CONTINUES, text)


def broken_succession(version: PolicyVersion, before: PolicyVersion) -> Iterator[Finding]:
    """What is wrong with a version after `before`, the one that its run published last."""
    if (version.version, version.step) != (before.version + 1, before.step + 1):
        text = f"expected one after version {before.version} of step {before.step}, got step {version.step}"
        yield Finding(Law.VERSION_SUCCESSION, text)
    if version.lineage != before.lineage:
        text = f"expected its run's lineage {_named(before.lineage)}, got {_named(version.lineage)}"
        yield Finding(Law.LINEAGE_KEPT, text)
    if before.is_last:
        text = f"expected none after version {before.version}, the planned end of its run, got one"
        yield Finding(Law.VERSION_AFTER_LAST, text)


def broken_lineage(version: PolicyVersion) -> Iterator[Finding]:
    """What is wrong with a lineage on its own."""
    steps = [entry.last_step for entry in version.lineage]
    if steps != sorted(steps) or any(step > version.step for step in steps):
        yield Finding(Law.LINEAGE_STEPS, f"expected a lineage of ascending steps up to {version.step}, got {steps}")
    run_ids = [entry.run_id for entry in version.lineage] + [version.run_id]
    if len(set(run_ids)) != len(run_ids):
        yield Finding(Law.LINEAGE_RUNS, f"expected each run once in its lineage, got {_named(version.lineage)}")


def _named(lineage: Sequence[LineageEntry]) -> list[str]:
    return [f"{entry.run_id}@{entry.last_step}" for entry in lineage]
