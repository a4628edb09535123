"""What an audit found in the topics of a run: broken laws, and how the groups ended."""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from gagar.audit.findings import Finding, Law
from gagar.audit.lengths import Lengths, Tenth
from gagar.audit.trails import Ending, Trail
from gagar.groups.rounds import Round


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the topics of a run prove and disprove."""

    findings: list[str]
    """Broken laws, in words: the first findings of each law and a count of the others."""
    broken: dict[str, int]
    """Findings by law, all of them."""
    since: float
    """Unix seconds; groups requested earlier are left out. 0: no group is left out."""
    num_requested: int
    """Groups, of both purposes."""
    num_trained: int
    num_evaluated: int
    dropped: dict[str, int]
    """Groups by reason."""
    num_in_flight: int
    overdue: dict[str, int]
    """Groups in flight that should have come further, by the topic where they stand; those on `advantages` wait for a step of
    the learner, which is no finding."""
    num_superseded: int
    """Outcomes of steps that a restarted learner left behind; in no other count."""
    num_retired: int
    """Groups of which retention has taken requests; in no other count."""
    tenths: list[Tenth]
    """Attempts of groups that have ended, by the length of their own work."""
    num_never_begun: int
    """Attempts of such groups that waited until their deadline, or met outages up to it, and have no length."""
    num_capped: int
    """Groups whose rescaling met its bound."""
    num_fallback: int
    """Groups that kept their GRPO advantages."""
    num_dead_letters: int
    num_references: int
    """References that were checked against the ends of their logs."""
    num_retired_references: int
    """Checked references to records that retention has taken."""
    num_followed: int
    """References whose records were read."""
    rounds: dict[int, Round]
    """By the step that names the round, ascending."""
    policy_version: int
    """Newest policy version; -1 if there is none."""
    is_ended: bool
    """The newest policy version is the planned end."""
    is_at_work: bool
    """A stage of the run is a member of its consumer group; if not, time has stood still since the newest record."""

    @property
    def is_clean(self) -> bool:
        """Every law holds."""
        return not self.findings

    @property
    def num_dropped(self) -> int:
        return sum(self.dropped.values())


BY_DESIGN = frozenset({"all_passed", "all_failed"})
"""Reasons for which a group is dropped whatever its attempts had to wait for: there is nothing to learn from it."""


class Tally:
    """Groups by how they ended, and their attempts by length."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self.num_never_begun = 0
        self.ended: Counter[tuple[str, str]] = Counter()
        """Surviving outcomes by kind and reason."""
        self.num_requested = 0
        self.num_in_flight = 0
        self.num_superseded = 0
        self.num_retired = 0
        self.overdue: Counter[str] = Counter()
        """By the topic where they stand."""

    def add(self, trail: Trail, surviving: Sequence[Ending], *, is_retired: bool) -> None:
        if is_retired:
            self.num_retired += 1
            return
        self.num_requested += bool(trail.asked)
        self.num_in_flight += bool(trail.asked) and not surviving
        self.num_superseded += len(trail.endings) - len(surviving)
        self.ended.update((ending.kind, ending.reason) for ending in surviving)
        if surviving:
            self._add_attempts(trail, surviving[0])

    def _add_attempts(self, trail: Trail, ending: Ending) -> None:
        invalid = trail.broken_off
        self.num_never_begun += len(invalid - trail.own_s.keys())
        dropped = trail.own_s.keys() - invalid
        if ending.kind != "dropped" or ending.reason in BY_DESIGN:
            dropped = dropped - trail.members if trail.num_groups else set()
        self._lengths.add((own_s, index in invalid, index in dropped) for index, own_s in trail.own_s.items())

    def broken_conservation(self) -> Iterator[Finding]:
        """Requested = ended + in flight."""
        num_ended = self.ended.total()
        if self.num_requested != num_ended + self.num_in_flight:
            got = f"{num_ended} ended and {self.num_in_flight} in flight"
            text = f"conservation: expected {self.num_requested} requested groups, got {got}"
            yield Finding(Law.CONSERVATION, text)
