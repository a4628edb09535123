"""A real stage process for kill tests: `python -m tests.broker.stage_process SERVERS RUN KIND [DEATH]`.

DEATH is `<point>:<n>`, see `tests.broker.deaths`.
"""

import asyncio
import logging
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gagar.config import KafkaTable
from gagar.stream.handlers import Delivery, Effect, Linked, Output, Transform
from gagar.stream.limits import RuntimeLimits
from tests.asking import make_sampler
from tests.broker.deaths import arm
from tests.contract.counting import STAGE as SOURCE
from tests.contract.counting import Counting
from tests.contract.gathering import STAGE as REDUCER
from tests.contract.gathering import Gathering
from tests.contract.world import make_run, make_stage, make_tokens, make_trajectory
from topology.composition import run_loop, serve_handler
from topology.resources import Resources
from topology.stages import SAMPLER

log = logging.getLogger("stage")
TRANSFORM = make_stage("transform")
EFFECT = make_stage("effect")
NUM_UNITS = 40
"""Of the source."""
NUM_STEPS = 3
"""Of the learner."""


class Answering(Effect):
    """Answers each request with tokens and a trajectory that refers to them, after a random moment."""

    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        log.info("handler begun %s", delivery.key)
        await asyncio.sleep(random.uniform(0, float(os.environ.get("HANDLE_S", "0.05"))))
        log.info("handler done %s", delivery.key)
        tokens = make_tokens(delivery.record, num_tokens=64)
        return [Linked(first=tokens, then=lambda ref: make_trajectory(delivery, tokens=ref))]


def learn_nothing(servers: str, name: str) -> None:
    """The learner without a model; its checkpoints are below LEARNER_ROOT."""
    from consumers.learner.client import JournalClient
    from consumers.learner.rank import Stop
    from gagar.stream.journal import LogJournal
    from gagar.stream.kafka.client import KafkaTransport
    from gagar.training.background import Background
    from tests.learner import make_settings
    from tests.null_learner import learn
    from topology import topics
    from topology.stages import LEARNER

    stop = Stop()
    stop.install()
    background = Background("learner log")
    journal = LogJournal(LEARNER, KafkaTransport(KafkaTable(bootstrap_servers=servers), name), topics.DEAD_LETTERS)
    settings = make_settings(Path(os.environ["LEARNER_ROOT"]), {"num_steps": NUM_STEPS}, checkpoint_every=2)
    learn(settings, JournalClient(journal, background), stop)


def main() -> None:
    servers, name, kind, *death = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(levelname)s %(name)s %(message)s")
    if death:
        arm(death[0])
    if kind == "learner":
        learn_nothing(servers, name)
        return
    run = make_run(name, servers, num_partitions=int(os.environ["NUM_PARTITIONS"]))
    stage, handler = {
        "transform": (TRANSFORM, Transform(lambda request: [make_trajectory(request)])),
        "effect": (EFFECT, Answering()),
        "reducer": (REDUCER, Gathering()),
        "source": (SOURCE, Counting(NUM_UNITS)),
        "sampler": (SAMPLER, make_sampler()),
        "waiting-source": (SOURCE, Counting(NUM_UNITS, ahead=5)),
    }[kind]
    resources, limits = Resources(run), RuntimeLimits(drain_s=float(os.environ["DRAIN_S"]))
    resources.member = os.environ["MEMBER"]
    run_loop(serve_handler(stage, resources, handler, limits))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
