"""A stage of the chaos suite as a process: `python -m tests.chaos.stage PLAN STAGE`.

It exits with 0 at the planned end or after SIGTERM, with a code of its own if a successor fenced it or if the log was away
(whoever keeps a stage starts it anew), and with 1 after anything else.
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gagar.errors import FencedError, GagarError, UnavailableError
from gagar.stream.handlers import Effect, Reducer
from gagar.stream.runtime import StageRuntime
from tests.chaos.handlers import Asking, Gatherer, Grader, Scene, Verifier, Worker, make_publisher
from tests.chaos.plan import Plan, stage_of
from tests.chaos.poison import install
from tests.chaos.tampering import Markers, Trace
from topology.composition import run_loop, serve_handler
from topology.resources import Resources

EXIT_FENCED = 3
EXIT_UNAVAILABLE = 4

HANDLERS: dict[str, Callable[[Scene], Effect | Reducer[Any]]] = {
    "rollout-worker": Worker,
    "verifier": Verifier,
    "gatherer": Gatherer,
    "grader": Grader,
    "advantage-publisher": make_publisher,
}


def trace_ownership(trace: Trace) -> None:
    """Has the runtime tell the trace of each division of its group."""
    original = StageRuntime.on_assigned

    def on_assigned(runtime: StageRuntime, numbers: frozenset[int]) -> None:
        trace.owns(numbers)
        original(runtime, numbers)

    StageRuntime.on_assigned = on_assigned  # type: ignore[method-assign, assignment]


def serve(plan: Plan, name: str) -> None:
    """The stage until SIGTERM or its planned end."""
    directory = Path(plan.directory)
    markers = Markers(directory)
    if name == "learner":
        from tests.chaos.learner import learn

        return learn(plan, markers)
    trace, expected = Trace(directory, name), plan.expected
    install(expected)
    trace_ownership(trace)
    scene = Scene(name, expected, markers, trace)
    handler = Asking(plan, scene) if name == "sampler" else HANDLERS[name](scene)
    resources = Resources(plan.run)
    limits = replace(resources.limits(), commit_gap_s=plan.pace.commit_gap_s)
    return run_loop(serve_handler(stage_of(name), resources, handler, limits))


def main() -> None:
    path, name = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    log = logging.getLogger("chaos")
    try:
        serve(Plan.read(Path(path)), name)
    except FencedError as error:
        log.error("fenced error=%s", error)
        sys.exit(EXIT_FENCED)
    except UnavailableError as error:
        log.error("unavailable error=%s", error)
        sys.exit(EXIT_UNAVAILABLE)
    except GagarError as error:
        log.error("refused error=%s", error)
        sys.exit(error.exit_code)
    log.info("ended stage=%s", name)


if __name__ == "__main__":
    main()
