"""Gatherer: requests and verdicts in, complete mixed groups and the ends of all others out.

Input   rollout-requests, verdicts  the members of a group, in any interleaving
Output  groups                      one Group with passing and failing members, or
        outcomes                    one Outcome: evaluated, or dropped and why; same key
State   the open groups, rebuilt from the log
"""

from typing import Annotated

from msgspec import Meta

from gagar.config import MAX_DURATION_S, Table
from gagar.groups.gathering import Gather, OpenGroup
from gagar.stream.handlers import Reducer
from topology.resources import Resources


class Config(Table, frozen=True, kw_only=True):
    """[gatherer] in the run file."""

    grace_s: Annotated[float, Meta(ge=0, le=MAX_DURATION_S, description=f"0 or more, at most {MAX_DURATION_S} (a year)")] = 30.0
    """How long after its rollouts' deadline a group waits for verdicts that are under way."""


def make(resources: Resources, config: Config) -> Reducer[OpenGroup]:
    """The stage's handler."""
    return Gather(config.grace_s)
