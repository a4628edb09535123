"""The laws of one trajectory's times, checked on the record and on what its request allows. Pure."""

from collections.abc import Iterator

from gagar.audit.findings import Finding, Law
from gagar.records import Trajectory

TOLERANCE_S = 1e-3
"""Rounding that times may show."""


def broken_times(trajectory: Trajectory, agent_timeout_s: float) -> Iterator[Finding]:
    """`agent_timeout_s`: of the request; 0 if that was not seen."""
    times, what = trajectory.times, f"sample {trajectory.sample_index}"
    parts = (times.queue_s, times.engine_s, times.sandbox_s, times.agent_s)
    if min(parts) < 0 or abs(sum(parts) - trajectory.duration_s) > TOLERANCE_S:
        text = f"{what}: expected times of 0 or more that add up to {trajectory.duration_s:.3f} s, got {times}"
        yield Finding(Law.TIMES_ADD_UP, text)
    is_agents = trajectory.attempt.status == "timeout" and not trajectory.infrastructure
    if is_agents and times.agent_s < agent_timeout_s - TOLERANCE_S:
        text = f"{what}: expected a time-out after {agent_timeout_s:g} s of own work, got one after {times.agent_s:.3f} s"
        yield Finding(Law.TIMEOUT_BY_OWN_CLOCK, text)
