"""A stage of the chain whose handler does nothing: `python -m tests.bench.null_stage SERVERS RUN STAGE`.

Runtime, topology and records are the real ones, and so are the handlers of gatherer, grader (kind `none`) and advantage
publisher, which only compute. The worker sends ready-made trajectories; the verifier lets every second one pass.
"""

import logging
import sys
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from gagar.config import Run
from gagar.records import LogRef, Record, RolloutRequest, Trajectory, Verdict, VerdictStatus
from gagar.stream.handlers import Delivery, Effect, Linked, Output, Transform
from gagar.verification.verdicts import untested
from tests.contract.world import make_run
from topology.composition import run_loop, serve_handler
from topology.resources import Resources
from topology.stages import ADVANTAGE_PUBLISHER, GATHERER, GRADER, ROLLOUT_WORKER, VERIFIER

NUM_TESTS = 8


class NullWorker(Effect):
    """Answers a request with the next trajectory of the pool."""

    def __init__(self) -> None:
        from tests.bench.contents import make_pool

        self._pool = make_pool()

    async def handle(self, delivery: Delivery[RolloutRequest], /) -> Sequence[Output]:
        request = delivery.record
        content = self._pool[request.seed % len(self._pool)]

        def refer(ref: LogRef) -> Record:
            return content.trajectory_for(request, delivery.ref, ref)

        return [Linked(first=content.tokens_for(request), then=refer)]


class NullVerifier(Effect):
    """Lets every second member of a group pass."""

    async def handle(self, delivery: Delivery[Trajectory], /) -> Sequence[Verdict]:
        status: VerdictStatus = "passed" if delivery.record.sample_index % 2 else "failed"
        return [replace(untested(delivery, NUM_TESTS), status=status, patch_digest="0" * 64)]


def serve_null(name: str, run: Run) -> Coroutine[Any, Any, None]:
    """The stage of that name, until SIGTERM."""
    if name == "rollout-worker":
        return serve_handler(ROLLOUT_WORKER, Resources(run), NullWorker())
    if name == "verifier":
        return serve_handler(VERIFIER, Resources(run), NullVerifier())
    if name == "gatherer":
        from gagar.groups.gathering import Gather

        return serve_handler(GATHERER, Resources(run), Gather(30.0))
    if name == "grader":
        from consumers.grader import GradeGroups
        from gagar.grading.plain import TiedGrader

        return serve_handler(GRADER, Resources(run), GradeGroups(TiedGrader(), 600.0))
    if name == "advantage-publisher":
        from consumers.advantage_publisher import Config, assign_advantages

        return serve_handler(ADVANTAGE_PUBLISHER, Resources(run), Transform(partial(assign_advantages, config=Config())))
    from tests.bench.null_learner import learn

    return learn(run)


def main() -> None:
    servers, name, stage = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    run_loop(serve_null(stage, make_run(name, servers)))


if __name__ == "__main__":
    main()
