"""Judges what processes tell of themselves. Pure: time is an argument.

Unhealthy is what only a new start mends: a loop that is blocked, a process that is stopped, work that does not go on. Whoever
waits for a broker, or for something else outside, is healthy: a new start would mend nothing, and throw work away.
"""

from typing import Any, Literal

import msgspec

from gagar.health.reporter import BLOCKED_S
from gagar.health.vitals import HealthFile, Vitals

FROZEN_S = 20.0
"""A process that wrote nothing for so long is stopped, or has no share of the processor."""
START_S = 900.0
"""A start may take so long: models and libraries are read meanwhile, which took six minutes on a busy machine."""
SILENT_S = 10.0
"""A log that answered nothing for so long is waited for."""

State = Literal["fine", "starting", "waiting", "outage", "stopping", "blocked", "stuck", "frozen"]
UNHEALTHY: tuple[State, ...] = ("blocked", "stuck", "frozen")


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """One process as it is judged. Ages are in seconds, at the moment of the judgement."""

    run: str
    stage: str
    pid: int
    state: State
    is_healthy: bool
    reason: str
    """In words; why it is in this state."""
    loop_age_s: float | None
    """Since the event loop told something; none: it does not run yet."""
    is_member: bool
    num_partitions: int
    last_poll_s: float | None
    lag: int | None
    num_in_work: int
    is_breaker_open: bool

    def line(self) -> str:
        """For people."""
        membership = f"member, {self.num_partitions} partitions" if self.is_member else "no member"
        poll = "none" if self.last_poll_s is None else f"{self.last_poll_s:.1f} s ago"
        lag = "unknown" if self.lag is None else self.lag
        breaker = "open" if self.is_breaker_open else "closed"
        facts = f"{membership}; last poll {poll}; lag {lag}; in work {self.num_in_work}; breaker {breaker}"
        return f"{self.stage} pid={self.pid} run={self.run}: {self.state}: {self.reason} ({facts})"


def judged(file: HealthFile, now: float) -> Health:
    """A process that lives, by its file; `now` is the machine's monotonic clock."""
    state, reason = _state(file, now)
    vitals = file.vitals
    facts: dict[str, Any] = {"loop_age_s": None, "is_member": False, "num_partitions": 0, "last_poll_s": None}
    facts |= {"lag": None, "num_in_work": 0, "is_breaker_open": False}
    if vitals is not None:
        facts |= {name: getattr(vitals, name) for name in facts if name in Vitals.__struct_fields__}
        polled_at = vitals.polled_at
        facts |= {"loop_age_s": now - vitals.at, "last_poll_s": None if polled_at is None else now - polled_at}
    return Health(
        run=file.run, stage=file.stage, pid=file.pid, state=state, is_healthy=state not in UNHEALTHY, reason=reason, **facts
    )


def _state(file: HealthFile, now: float) -> tuple[State, str]:
    if now - file.written_at > FROZEN_S:
        return "frozen", f"told nothing for {now - file.written_at:.0f} s: it is stopped, or gets no time of the processor"
    vitals = file.vitals
    if vitals is not None and now - vitals.at > BLOCKED_S:
        busy = f" by {file.busy_with}" if file.busy_with else ""
        return "blocked", f"event loop held for {now - vitals.at:.0f} s{busy}"
    if vitals is None or vitals.phase == "starting":
        started_s = now - file.started_at
        return ("stuck", f"starting for {started_s:.0f} s") if started_s > START_S else ("starting", f"for {started_s:.0f} s")
    return _state_at_work(vitals, now)


def _state_at_work(vitals: Vitals, now: float) -> tuple[State, str]:
    if vitals.phase == "stopping":
        return "stopping", "work in progress ends"
    if vitals.is_breaker_open:
        return "outage", "something outside is down: intake pauses"
    if waits_for := _waits_for(vitals):
        return "waiting", f"for the log: {waits_for}"
    if vitals.active_at is not None and now - vitals.active_at > vitals.patience_s:
        return "stuck", f"work did not go on for {now - vitals.active_at:.0f} s"
    return "fine", "at work" if vitals.num_in_work else "nothing in work"


def _waits_for(vitals: Vitals) -> str:
    """What the log has not given; empty if it gives all."""
    if not vitals.is_member:
        return "no place in the stage's group yet, or no longer"
    if vitals.num_waiting:
        return f"{vitals.num_waiting} of {vitals.num_partitions} partitions cannot be read"
    return f"no answer for {vitals.silent_s:.0f} s" if vitals.silent_s > SILENT_S else ""
