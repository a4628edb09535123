"""What an audit says of a run: findings, and groups and attempts counted."""

from collections.abc import Iterator, Sequence

import msgspec

from gagar.audit.findings import Finding, Law
from gagar.audit.trails import Ending, Trail
from gagar.records import Outcome


class RoundStats(msgspec.Struct, kw_only=True):
    """Sums over the groups of an evaluation round."""

    num_groups: int = 0
    num_attempts: int = 0
    num_valid: int = 0
    num_passed: int = 0
    num_clean: int = 0
    """Passing attempts without needless statement or edit outside the task."""
    num_sampled_tokens: int = 0

    def add(self, outcome: Outcome) -> None:
        self.num_groups += 1
        self.num_attempts += outcome.num_requested
        self.num_valid += outcome.num_valid
        self.num_passed += outcome.num_passed
        self.num_clean += outcome.num_clean
        self.num_sampled_tokens += outcome.num_sampled_tokens

    @property
    def pass_rate(self) -> float:
        """Passed by valid attempts; 0 without valid ones."""
        return self.num_passed / self.num_valid if self.num_valid else 0.0

    @property
    def clean_share(self) -> float:
        """Clean by passed attempts; 0 if none passed."""
        return self.num_clean / self.num_passed if self.num_passed else 0.0


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the topics say of a run."""

    findings: list[str]
    """Broken laws, in words; of each law the first few and a count of the rest."""
    broken: dict[str, int]
    """Findings by law, all of them."""
    since: float
    """Groups requested before are left out; 0: none."""
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
    num_capped: int
    """Groups whose rescaling met its bound."""
    num_fallback: int
    """Groups that kept their GRPO advantages."""
    num_dead_letters: int
    num_references: int
    """That were checked against the ends of their logs."""
    num_retired_references: int
    """Of those, to records that retention has taken."""
    num_followed: int
    """References whose records were read."""
    rounds: dict[int, RoundStats]
    """By the step that names the round, ascending."""
    policy_version: int
    """Newest; -1 if none."""
    is_ended: bool
    """The newest policy version is the planned end."""

    @property
    def is_clean(self) -> bool:
        """Every law holds."""
        return not self.findings

    @property
    def num_dropped(self) -> int:
        return sum(self.dropped.values())


class Tally:
    """Groups by how they ended."""

    def __init__(self) -> None:
        self.ended: dict[tuple[str, str], int] = {}
        """Surviving outcomes by kind and reason."""
        self.num_requested = 0
        self.num_in_flight = 0
        self.num_superseded = 0
        self.num_retired = 0
        self.overdue: dict[str, int] = {}
        """By the topic where they stand."""

    def add(self, trail: Trail, surviving: Sequence[Ending], *, is_retired: bool) -> None:
        if is_retired:
            self.num_retired += 1
            return
        self.num_requested += bool(trail.asked)
        self.num_in_flight += bool(trail.asked) and not surviving
        self.num_superseded += len(trail.endings) - len(surviving)
        for ending in surviving:
            key = (ending.kind, ending.reason)
            self.ended[key] = self.ended.get(key, 0) + 1

    def broken_conservation(self) -> Iterator[Finding]:
        """Requested = ended + in flight."""
        num_ended = sum(self.ended.values())
        if self.num_requested != num_ended + self.num_in_flight:
            got = f"{num_ended} ended and {self.num_in_flight} in flight"
            text = f"conservation: expected {self.num_requested} requested groups, got {got}"
            yield Finding(Law.CONSERVATION, text)
