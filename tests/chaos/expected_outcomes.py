"""How every group must end, as a pure function of the seed, the number of groups and the group's id.

Nothing here is observed: members, poison, outcome and dead letters are drawn from the seed, and the rules of the stream are
written down a second time, on purpose apart from the code that they judge.

Example: in group t-000007 sample 2's verdict is garbage. The gatherer dead-letters it and misses it until the deadline; the
three members that are left pass and fail, so the group is trained, with `num_requested` 4 and `num_valid` 3.
"""

import random
from collections import Counter
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Literal

import msgspec

from gagar.records import DropReason, OutcomeKind, PatchMeasures, VerdictStatus

GROUP_SIZE = 4
MIXED_SHARE = 0.65
BROKEN_SHARE = 0.03
"""Of groups: the infrastructure fails all members but one."""
INVALID_SHARE = 0.04
"""Of the members of all others."""
PER_KIND = 2
"""Groups for each kind of poison, at least."""
GROUPS_PER_POISON = 500
"""A long run has one more of each kind for so many groups: of the early groups of a stage one in forty is rejected then, far
from what stops a stage."""
EARLY_SHARE = 0.4
"""Poison lies in the first part of a run, so that the groups that must wait for their deadline wait while it goes on."""
NUM_EVALUATIONS = 12
MIN_GROUPS = 125

Loses = Literal["member", "group", "tokens"]
Act = Literal["garbage", "sentinel", "bug", "oversized", "refused"]
"""garbage: bytes that are no record, on a topic. sentinel: tokens with log-probabilities that are none. bug: a stage's handler
raises, each time. oversized: an output that the runtime itself finds too large. refused: one that passes its check, and the
broker refuses it in the transaction."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One way to harm a group."""

    act: Act
    place: str
    """The topic whose record is spoilt; of a bug the stage."""
    rejected_by: tuple[str, ...] = ()
    """Stages that write a dead letter for it; none if the learner finds the tokens unusable."""
    loses: Loses
    """member: its group misses it until the deadline. group: it ends as dead_letter at once. tokens: it ends as lost, at the
    learner."""

    def __str__(self) -> str:
        return f"{self.act} {self.place}"


def _kinds() -> Iterator[Kind]:
    members = {"trajectories": ("rollout-worker", "verifier"), "verdicts": ("verifier", "gatherer")}
    groups = {
        "groups": ("gatherer", "grader"),
        "graded-groups": ("grader", "advantage-publisher"),
        "advantages": ("advantage-publisher", "learner"),
    }
    yield Kind(act="garbage", place="rollout-requests", rejected_by=("rollout-worker", "gatherer"), loses="member")
    yield Kind(act="sentinel", place="trajectory-tokens", loses="tokens")
    yield Kind(act="oversized", place="trajectory-tokens", rejected_by=("rollout-worker",), loses="member")
    yield Kind(act="refused", place="trajectory-tokens", rejected_by=("rollout-worker",), loses="member")
    by_loss: tuple[tuple[Loses, dict[str, tuple[str, str]]], ...] = (("member", members), ("group", groups))
    for loses, topics in by_loss:
        for topic, (writer, reader) in topics.items():
            yield Kind(act="garbage", place=topic, rejected_by=(reader,), loses=loses)
            yield Kind(act="oversized", place=topic, rejected_by=(writer,), loses=loses)
            yield Kind(act="refused", place=topic, rejected_by=(writer,), loses=loses)
    for stage in ("rollout-worker", "verifier", "gatherer"):
        yield Kind(act="bug", place=stage, rejected_by=(stage,), loses="member")
    for stage in ("grader", "advantage-publisher"):
        yield Kind(act="bug", place=stage, rejected_by=(stage,), loses="group")


KINDS = tuple(_kinds())


class Poison(msgspec.Struct, frozen=True, kw_only=True):
    """What befalls one group."""

    kind: Kind
    sample_index: int
    """The member that it befalls; -1: the whole group."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt as the handlers make it."""

    status: VerdictStatus
    num_sampled: int
    """0 of an invalid one."""
    measures: PatchMeasures = PatchMeasures()
    """Of a passing one."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared of an outcome: all that does not depend on time."""

    kind: OutcomeKind
    reason: DropReason = ""
    num_requested: int = 0
    num_valid: int = 0
    num_passed: int = 0
    num_clean: int = 0
    num_sampled_tokens: int = 0

    def __str__(self) -> str:
        counts = f"{self.num_passed}({self.num_clean})/{self.num_valid}/{self.num_requested}"
        return f"{self.kind}{f' {self.reason}' if self.reason else ''} {counts} tokens {self.num_sampled_tokens}"


class Letter(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A dead letter, told apart by what does not depend on time."""

    stage: str
    group_id: str
    sample_index: int
    """-1: of a whole group."""


class ExpectedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One group's."""

    group_id: str
    members: tuple[Member, ...]
    poison: Poison | None = None

    @property
    def is_lossy(self) -> bool:
        """Whether it waits for its deadline, since a member never gets to the gatherer."""
        return self.poison is not None and self.poison.kind.loses == "member"

    @property
    def letters(self) -> list[Letter]:
        """The dead letters that it must leave, each once."""
        if self.poison is None:
            return []
        return [
            Letter(stage=stage, group_id=self.group_id, sample_index=self.poison.sample_index)
            for stage in self.poison.kind.rejected_by
        ]

    @property
    def end(self) -> End:
        """Its one outcome."""
        lost = self.poison.sample_index if self.poison is not None and self.is_lossy else -1
        valid = [m for index, m in enumerate(self.members) if index != lost and m.status != "invalid"]
        kind, reason = self._decide(valid)
        if reason == "dead_letter":
            return End(kind=kind, reason=reason)
        passed = [member for member in valid if member.status == "passed"]
        return End(
            kind=kind,
            reason=reason,
            num_requested=len(self.members),
            num_valid=len(valid),
            num_passed=len(passed),
            num_clean=sum(is_clean(member.measures) for member in passed),
            num_sampled_tokens=sum(member.num_sampled for member in valid),
        )

    def _decide(self, valid: list[Member]) -> tuple[OutcomeKind, DropReason]:
        statuses = {member.status for member in valid}
        if self.group_id.startswith("e-"):
            return ("evaluated", "") if valid else ("dropped", "too_few_valid")
        if len(valid) < 2:
            return "dropped", "too_few_valid"
        if len(statuses) == 1:
            return "dropped", "all_passed" if statuses == {"passed"} else "all_failed"
        if self.poison is None or self.is_lossy:
            return "trained", ""
        return "dropped", "lost" if self.poison.kind.loses == "tokens" else "dead_letter"


def is_clean(measures: PatchMeasures) -> bool:
    return not measures.num_files_out_of_scope and not measures.num_dead_statements


def num_padding(seed: int, num_groups: int, groups_per_step: int) -> int:
    """Groups that must be trained besides these, so that the learner's last step is full."""
    if groups_per_step == 1:
        return 0
    return -sum(outcome.end.kind == "trained" for outcome in ExpectedOutcomes(seed, num_groups).all()) % groups_per_step


class ExpectedOutcomes:
    """Those of a run of `num_groups` training groups and its evaluations; the last `num_padding` of them are trained."""

    def __init__(self, seed: int, num_groups: int, num_padding: int = 0) -> None:
        if num_groups < MIN_GROUPS:
            raise ValueError(f"groups: expected {MIN_GROUPS} or more, got {num_groups}: each kind of poison needs some")
        self.num_groups = num_groups
        self._seed = seed
        self._num_drawn = num_groups - num_padding
        self._padding = {f"t-{index:06d}" for index in range(self._num_drawn, num_groups)}
        self._cached = lru_cache(maxsize=4096)(self._make)

    def of(self, group_id: str) -> ExpectedOutcome:
        """The outcome of a group."""
        return self._cached(group_id)

    def all(self) -> Iterator[ExpectedOutcome]:
        """Every group's."""
        for group_id in self.group_ids():
            yield self._make(group_id)

    @property
    def letters(self) -> Counter[Letter]:
        """The dead letters that a run must leave, of all groups."""
        return Counter(letter for outcome in self.all() for letter in outcome.letters)

    def group_ids(self) -> Iterator[str]:
        """Every group that must be asked for, and no other."""
        yield from (f"e-000000-{index:04d}" for index in range(NUM_EVALUATIONS))
        yield from (f"t-{index:06d}" for index in range(self.num_groups))

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The poisoned groups, each with its kind."""
        chance, per_kind = self.chance("poison"), max(PER_KIND, self._num_drawn // GROUPS_PER_POISON)
        indices = chance.sample(range(int(self._num_drawn * EARLY_SHARE)), per_kind * len(KINDS))
        return {f"t-{index:06d}": KINDS[place // per_kind] for place, index in enumerate(indices)}

    def chance(self, *what: object) -> random.Random:
        """Chance that is the same in every process."""
        return random.Random("/".join(map(str, (self._seed, *what))))

    def delay_s(self, stage: str, group_id: str, sample_index: int = -1) -> float:
        """How long a handler works: mostly moments, a few a second, some five."""
        chance = self.chance("delay", stage, group_id, sample_index)
        share = chance.random()
        if share < 0.94:
            return chance.uniform(0.005, 0.05)
        return 1.0 if share < 0.98 else 5.0

    def _make(self, group_id: str) -> ExpectedOutcome:
        chance = self.chance("outcome", group_id)
        kind = self.kinds.get(group_id)
        members = _members(chance, must_be_mixed=kind is not None or group_id in self._padding)
        if kind is None:
            return ExpectedOutcome(group_id=group_id, members=members)
        can_be_hit = [index for index, member in enumerate(members) if member.status != "invalid"]
        sample_index = -1 if kind.loses == "group" else chance.choice(can_be_hit)
        return ExpectedOutcome(group_id=group_id, members=members, poison=Poison(kind=kind, sample_index=sample_index))


def _members(chance: random.Random, *, must_be_mixed: bool) -> tuple[Member, ...]:
    statuses: list[VerdictStatus]
    if must_be_mixed or chance.random() < MIXED_SHARE:
        statuses = ["passed", "failed", *(chance.choice(("passed", "failed")) for _ in range(GROUP_SIZE - 2))]
        chance.shuffle(statuses)
    else:
        statuses = [chance.choice(("passed", "failed"))] * GROUP_SIZE
    if not must_be_mixed:
        is_broken = chance.random() < BROKEN_SHARE
        statuses = ["invalid" if index and is_broken else status for index, status in enumerate(statuses)]
        statuses = ["invalid" if chance.random() < INVALID_SHARE else status for status in statuses]
    return tuple(_member(chance, status) for status in statuses)


def _member(chance: random.Random, status: VerdictStatus) -> Member:
    num_sampled = 0 if status == "invalid" else chance.randint(4, 40)
    if status != "passed":
        return Member(status=status, num_sampled=num_sampled)
    measures = PatchMeasures(
        num_added_lines=chance.randint(1, 30),
        num_files=1,
        num_dead_statements=int(chance.random() < 0.3),
        num_files_out_of_scope=int(chance.random() < 0.2),
    )
    return Member(status=status, num_sampled=num_sampled, measures=measures)
