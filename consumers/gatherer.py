"""Gatherer: requests and verdicts in, complete mixed groups and the ends of all others out.

Input   rollout-requests, verdicts  the members of a group, in any interleaving
Output  groups                      one Group with passing and failing members, or
        outcomes                    one Outcome: evaluated, or dropped and why; same key
State   the open groups, rebuilt from the log
"""

import msgspec

from gagar.config import require_duration
from gagar.stream.handlers import Settings


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[gatherer] in the run file."""

    grace_s: float = 30.0
    """How long after its rollouts' deadline a group waits for verdicts that are under way."""

    def __post_init__(self) -> None:
        require_duration(self.grace_s, "gatherer.grace_s", may_be_zero=True)


def main(settings: Settings[Config]) -> None:
    """Runs the stage until it is told to stop."""
    from gagar.cli.serve import serve
    from gagar.groups.gathering import Gather
    from topology.stages import GATHERER

    serve(GATHERER, settings, Gather(settings.config.grace_s))
