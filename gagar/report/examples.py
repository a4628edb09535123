"""A few trajectories for people to look at: chosen from verdicts as they pass by, then read by reference.

In: verdicts, later the trajectories at `wanted()`. Out: `ShownAttempt`s, bounded in number and length. Kept: two verdicts of
each kind. The texts are an agent's: whoever shows them must escape them.
"""

from collections.abc import Mapping

import msgspec

from gagar.records import LogRef, Trajectory, Verdict

MAX_STATEMENT_CHARS = 1_500
MAX_PATCH_CHARS = 4_000
MAX_REASON_CHARS = 400
CLEAN, DEAD_CODE, OUT_OF_SCOPE, FAILED = "passed, clean", "passed, dead code", "passed, out of scope", "failed"
KINDS = (FAILED, DEAD_CODE, OUT_OF_SCOPE, CLEAN)


class ShownAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, cut to a readable length."""

    kind: str
    when: str
    """`first` or `last` of its kind."""
    task_id: str
    version: int
    statement: str
    patch: str
    reason: str
    tests: str
    """Passed of expected."""
    num_sampled_tokens: int


class Examples:
    """Chooses the first and the last training attempt of each kind."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Verdict]] = {}
        """By kind the first and the last, or the only one."""

    def apply(self, verdict: Verdict) -> None:
        """Takes a verdict in; attempts that changed nothing and invalid ones are left out."""
        if verdict.purpose != "training" or verdict.status == "invalid" or not verdict.measures.num_files:
            return
        self._kept.setdefault(kind_of(verdict), [])[1:] = [verdict]

    def _chosen(self) -> list[tuple[str, str, Verdict]]:
        kept = [(kind, self._kept.get(kind, [])) for kind in KINDS]
        return [(kind, when, verdict) for kind, pair in kept for when, verdict in zip(("first", "last"), pair, strict=False)]

    def wanted(self) -> set[LogRef]:
        """Where the trajectories of the chosen attempts lie."""
        return {verdict.trajectory for _, _, verdict in self._chosen()}

    def build(self, trajectories: Mapping[LogRef, Trajectory]) -> list[ShownAttempt]:
        """The examples whose trajectory is there."""
        return [
            _example(kind, when, verdict, trajectories[verdict.trajectory])
            for kind, when, verdict in self._chosen()
            if verdict.trajectory in trajectories
        ]


def kind_of(verdict: Verdict) -> str:
    """Which of `KINDS` a valid attempt is; an edit out of scope weighs more than dead code."""
    if verdict.status != "passed":
        return FAILED
    if verdict.measures.num_files_out_of_scope:
        return OUT_OF_SCOPE
    return CLEAN if verdict.measures.is_clean else DEAD_CODE


def _example(kind: str, when: str, verdict: Verdict, trajectory: Trajectory) -> ShownAttempt:
    statement = next((m.content for m in trajectory.messages if m.role == "user"), "")
    return ShownAttempt(
        kind=kind,
        when=when,
        task_id=verdict.task_id,
        version=verdict.attempt.policy_version_max,
        statement=shortened(statement, MAX_STATEMENT_CHARS),
        patch=shortened(trajectory.patch, MAX_PATCH_CHARS),
        reason=shortened(verdict.reason, MAX_REASON_CHARS),
        tests=f"{verdict.num_tests_passed} of {verdict.num_tests_expected}",
        num_sampled_tokens=verdict.attempt.num_sampled_tokens,
    )


def shortened(text: str, max_chars: int) -> str:
    """The text, its end replaced by a note if it is longer; characters that no page can hold are replaced."""
    safe = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")
    if len(safe) <= max_chars:
        return safe
    return f"{safe[:max_chars]}\n[{len(safe) - max_chars} more characters]"
