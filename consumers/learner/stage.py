"""Learner: redistributed advantages in; optimizer steps, outcomes and policy versions out.

Input      advantages         GroupAdvantages, read from the positions of the checkpoint
Table      policy-versions    at a start without a checkpoint: whether there was a run before
           outcomes           at a start that goes on from another run: what to train again
Reference  trajectory-tokens  the token arrays; each rank reads its own
Output     outcomes           how each group ended: trained at a step, or dropped and why
           policy-versions    one for each step, in the same transaction as the step's outcomes
State      checkpoints: engine state, positions, finished groups, run and lineage

A learner that restarts goes back to its newest checkpoint under a new run id; what it did after that is superseded and done
again. A batch whose loss or gradient is not finite makes no step and no version: its groups end as dropped/non_finite, the
next batch takes its step number, and a file keeps the evidence.
"""

import os
import sys

from consumers.learner.config import Config, Settings
from gagar.stream.handlers import Standalone
from topology.resources import Resources


class Learner(Standalone):
    """One rank; or, with several that nobody has started yet, their parent: a rank is the same command with RANK set."""

    def __init__(self, settings: Settings, resources: Resources) -> None:
        self._settings = settings
        self._resources = resources

    def run(self) -> None:
        from gagar.training.torchrun import end_with_parent, launch

        is_rank = "RANK" in os.environ
        if is_rank:
            end_with_parent()
        if is_rank or self._settings.config.num_ranks == 1:
            from consumers.learner.rank import run_rank

            run_rank(self._settings, self._resources.health)
            return
        if self._resources.health is not None:
            self._resources.health.close()  # each rank tells of itself
        if code := launch([sys.executable, *sys.orig_argv[1:]], self._settings.config.num_ranks):
            raise SystemExit(code)


def make(resources: Resources, config: Config) -> Standalone:
    """The stage's handler."""
    return Learner(Settings(config=config, run=resources.run), resources)
