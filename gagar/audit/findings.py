"""What an audit can hold against a run: the laws by name, and what breaks them in words.

Kept: for each law a count and its first findings in words, so that no law hides another and memory is bounded.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

MAX_TEXTS = 20
"""Findings of one law that are kept in words; more are only counted."""


class Law(StrEnum):
    """Each is told in one form of words, so a test that breaks them all has seen all that an audit can find."""

    PARTITIONS = "partitions"
    REQUESTED = "requested"
    REQUESTED_ONCE = "requested once"
    REQUESTED_IN_ONE_SIZE = "requested in one size"
    REQUESTED_WHOLE = "requested whole"
    REQUEST_ANSWERED = "request answered"
    TRAJECTORY_ONCE = "trajectory once"
    TRAJECTORY_REQUESTED = "trajectory requested"
    TRAJECTORY_TOKENS = "trajectory with tokens"
    TIMES_ADD_UP = "times add up"
    TIMEOUT_BY_OWN_CLOCK = "timeout by own clock"
    VERDICT_ONCE = "verdict once"
    VERDICT_TRAJECTORY = "verdict with trajectory"
    VERDICT_INVALID = "verdict invalid"
    VERDICT_REQUESTED = "verdict requested"
    MEMBER_VERDICT = "member with verdict"
    REQUEST_REFERENCE = "request reference"
    TRAJECTORY_REFERENCE = "trajectory reference"
    TOKENS_REFERENCE = "tokens reference"
    REFERENCE_IN_LOG = "reference in log"
    REFERENCE_TO_RECORD = "reference to record"
    REFERENCE_TO_OWN = "reference to own"
    TOPIC_ONCE = "topic once"
    TOPIC_ORDER = "topic order"
    ONE_OUTCOME = "one outcome"
    OUTCOME_OF_PURPOSE = "outcome of purpose"
    OUTCOME_OF_WAY = "outcome of way"
    OUTCOME_REASON = "outcome reason"
    OUTCOME_STEP = "outcome step"
    OUTCOME_COUNTS = "outcome counts"
    TRAINED_ON_ADVANTAGES = "trained on advantages"
    TRAINED_INTO_VERSION = "trained into version"
    STALENESS_TOLD = "staleness told"
    STALENESS_BOUND = "staleness bound"
    OVERDUE = "overdue"
    CONSERVATION = "conservation"
    ENDED_AT_END = "ended at end"
    VERSION_SUCCESSION = "version succession"
    VERSION_AFTER_LAST = "version after last"
    VERSION_BASE = "version base"
    LINEAGE_KEPT = "lineage kept"
    LINEAGE_STEPS = "lineage steps"
    LINEAGE_RUNS = "lineage runs"
    LINEAGE_RESOLVES = "lineage resolves"
    LINEAGE_CONTINUES = "lineage continues"
    LINEAGE_ROOT = "lineage root"
    ONE_LEARNER = "one learner"
    ADVANTAGES_FINITE = "advantages finite"
    ADVANTAGES_MEMBERS = "advantages members"
    ADVANTAGES_MIXED = "advantages mixed"
    ADVANTAGES_BASELINE = "advantages baseline"
    ADVANTAGES_WEIGHT = "advantages weight"
    ADVANTAGES_SHIFT = "advantages shift"
    ADVANTAGES_CAP = "advantages cap"
    ADVANTAGES_FAILING = "advantages failing"
    ADVANTAGES_SUM = "advantages sum"
    ADVANTAGES_CENTRE = "advantages centre"
    ADVANTAGES_RATIO = "advantages ratio"


class Finding(NamedTuple):
    """One law broken at one place."""

    law: Law
    text: str

    def of(self, what: str) -> "Finding":
        """The same, said of `what`."""
        return Finding(self.law, f"{what}: {self.text}")


class Findings:
    """Findings by law, bounded."""

    def __init__(self) -> None:
        self._texts: dict[Law, list[str]] = {}
        self._counts: Counter[Law] = Counter()

    def add(self, finding: Finding) -> None:
        texts = self._texts.setdefault(finding.law, [])
        self._counts[finding.law] += 1
        if len(texts) < MAX_TEXTS:
            texts.append(finding.text)

    def add_all(self, findings: Iterable[Finding], what: str = "") -> None:
        """Each of `findings`, said of `what` if that is given."""
        for finding in findings:
            self.add(finding.of(what) if what else finding)

    @property
    def counts(self) -> dict[str, int]:
        """How often each law is broken, in the order of `Law`."""
        return {law.value: self._counts[law] for law in Law if law in self._counts}

    @property
    def texts(self) -> list[str]:
        """In the order of `Law`; what is left out is counted."""
        lines: list[str] = []
        for law in Law:
            kept = self._texts.get(law, [])
            num_more = self._counts[law] - len(kept)
            lines += [*kept, *([f"{law.value}: and {num_more} more"] if num_more else [])]
        return lines
