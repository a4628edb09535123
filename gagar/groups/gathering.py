"""Groups out of requests and verdicts: the gatherer's keyed state, as pure functions of deliveries and time.

In: the `RolloutRequest`s and `Verdict`s of a group in any interleaving. Out: exactly one `Group` or `Outcome` for each group
that was requested, when its last verdict is in or its deadline plus grace has passed. Duplicates are counted and go nowhere;
so are late members, by the runtime. Not promised: that a member which is late is trained on.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from gagar.records import DropReason, Group, LogRef, Outcome, RolloutRequest, Verdict
from gagar.stream.handlers import Delivery, Output, Reduced, Reducer

logger = logging.getLogger(__name__)


class OpenGroup:
    """What is known of a group that has not ended."""

    __slots__ = ("deadline", "key", "num_duplicates", "request", "requested", "since", "verdicts")

    def __init__(self, key: str) -> None:
        self.key = key
        self.request: RolloutRequest | None = None
        """One of those that came: they differ in sample_index and seed only, and a backlog holds many groups open."""
        self.since = 0.0
        """Broker time of that one."""
        self.requested = 0
        """Bit i: the request of sample i came."""
        self.deadline = 0.0
        """The latest of all requests, in broker time (Unix seconds)."""
        self.verdicts: dict[int, Verdict] = {}
        self.num_duplicates = 0

    @property
    def is_complete(self) -> bool:
        """Every request and every verdict is in; a request that came after the end would open the group again."""
        if self.request is None:
            return False
        size = self.request.group_size
        return self.requested.bit_count() >= size and len(self.verdicts) >= size

    def add(self, delivery: Delivery[Any]) -> bool:
        """False: it was there."""
        record: RolloutRequest | Verdict = delivery.record
        index = record.sample_index
        if isinstance(record, Verdict):
            return self.verdicts.setdefault(index, record) is record
        if self.requested >> index & 1:
            return False
        if self.request is None:
            self.request, self.since = record, delivery.at
        self.requested |= 1 << index
        self.deadline = max(self.deadline, delivery.at + record.deadline_s)
        return True


class Gather(Reducer[OpenGroup]):
    """Closes each group by its last verdict or at its deadline."""

    def __init__(self, grace_s: float) -> None:
        """`grace_s`: how long after its deadline a group waits for verdicts that are under way."""
        self._grace_s = grace_s
        self.num_duplicates = 0

    def start(self, key: str) -> OpenGroup:
        return OpenGroup(key)

    def apply(self, state: OpenGroup, delivery: Delivery[Any], now: float) -> Reduced:
        if not state.add(delivery):
            self._count_duplicate(state, delivery.record)
        elif state.request is not None and state.is_complete:
            return Reduced(outputs=[close(state, state.request, now)], is_closed=True)
        return Reduced()

    def wake_at(self, state: OpenGroup) -> float | None:
        """None while only verdicts came: the requests that precede them in time are still to be read."""
        return state.deadline + self._grace_s if state.request is not None else None

    def expire(self, state: OpenGroup, now: float) -> Reduced:
        due = self.wake_at(state)
        if state.request is None or due is None or now < due:
            return Reduced()
        size = state.request.group_size
        age_s = now - state.since
        logger.warning("group expired group=%s verdicts=%d/%d age_s=%.1f", state.key, len(state.verdicts), size, age_s)
        return Reduced(outputs=[close(state, state.request, now)], is_closed=True)

    def is_late(self, delivery: Delivery[Any], is_finished: Callable[[LogRef], bool]) -> bool:
        """A verdict is late if its request's unit is committed: all inputs of a group are finished together, when it closes. A
        retried request comes after the others of its group: if that is not open by then, it has closed."""
        if isinstance(delivery.record, RolloutRequest):
            return delivery.is_retry
        return isinstance(delivery.record, Verdict) and is_finished(delivery.record.attempt.request)

    def _count_duplicate(self, state: OpenGroup, record: RolloutRequest | Verdict) -> None:
        state.num_duplicates += 1
        self.num_duplicates += 1
        what = type(record).__name__
        logger.warning("member doubled group=%s sample=%d record=%s", state.key, record.sample_index, what)


def close(state: OpenGroup, request: RolloutRequest, now: float) -> Output:
    """How the group of `request` ends with the verdicts that it has."""
    members = [state.verdicts[index] for index in sorted(state.verdicts)]
    valid = [member for member in members if member.status != "invalid"]
    if request.purpose == "evaluation":
        return _outcome(request, valid, now, "" if valid else _why_unusable(members))
    reason = _why_unusable(members) if len(valid) < 2 else _why_uniform(valid)
    if reason:
        return _outcome(request, valid, now, reason)
    return Group(
        group_id=request.group_id,
        task_id=request.task_id,
        group_size=request.group_size,
        members=valid,
        num_invalid=len(members) - len(valid),
        num_missing=request.group_size - len(members),
    )


def _why_unusable(members: Sequence[Verdict]) -> DropReason:
    return "too_few_valid" if members else "lost"


def _why_uniform(valid: Sequence[Verdict]) -> DropReason:
    num_passed = sum(member.status == "passed" for member in valid)
    if num_passed == len(valid):
        return "all_passed"
    return "" if num_passed else "all_failed"


def _outcome(request: RolloutRequest, valid: Sequence[Verdict], now: float, reason: DropReason) -> Outcome:
    """`dropped` for a reason, else `evaluated`."""
    passed = [member for member in valid if member.status == "passed"]
    oldest = [member.attempt.policy_version_min for member in valid if member.attempt.policy_version_min >= 0]
    return Outcome(
        group_id=request.group_id,
        task_id=request.task_id,
        purpose=request.purpose,
        kind="dropped" if reason else "evaluated",
        reason=reason,
        step=-1 if reason else request.step,
        policy_version_min=min(oldest, default=-1),
        policy_version_max=max((member.attempt.policy_version_max for member in valid), default=-1),
        num_requested=request.group_size,
        num_valid=len(valid),
        num_passed=len(passed),
        num_clean=sum(member.measures.is_clean for member in passed),
        num_sampled_tokens=sum(member.attempt.num_sampled_tokens for member in valid),
        at=now,
    )
