"""A real stage process for kill tests: `python -m tests.broker.stage_process SERVERS RUN KIND [DEATH]`.

DEATH is `<call>:<n>`: the process sends itself SIGKILL at the n-th of these calls: `begin`, `send`, `commit` (all is produced,
nothing committed), `answer` (it is committed, and the process does not know).
"""

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Sequence
from typing import Any

from gagar.cli.serve import run_loop, run_stage
from gagar.stream.handlers import Delivery, Linked, Output, References
from gagar.stream.kafka import KafkaProducer
from tests.contract.test_reducers import STAGE as REDUCER
from tests.contract.test_reducers import Gathering
from tests.contract.test_sources import STAGE as SOURCE
from tests.contract.test_sources import Counting
from tests.contract.world import make_run, make_stage, make_tokens, make_trajectory

EFFECT = make_stage("effect")


class Attempting:
    """Answers each request with tokens and a trajectory that refers to them, after a random moment."""

    async def open(self, references: References) -> None: ...

    def observe(self, record: Any, /) -> None: ...

    async def handle(self, delivery: Delivery[Any], /) -> Sequence[Output]:
        await asyncio.sleep(random.uniform(0, float(os.environ.get("HANDLE_S", "0.05"))))
        tokens = make_tokens(delivery.record, num_tokens=64)
        return [Linked(first=tokens, then=lambda ref: make_trajectory(delivery, tokens=ref))]

    async def close(self) -> None: ...


def die_at(death: str) -> None:
    """Arms the process."""
    call, _, count = death.partition(":")
    name = "commit" if call == "answer" else call
    original = getattr(KafkaProducer, name)
    left = int(count)

    async def armed(self: KafkaProducer, *args: Any) -> Any:
        nonlocal left
        left -= 1
        is_last = left == 0  # others count on while this one waits
        if is_last and call != "answer":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await original(self, *args)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(KafkaProducer, name, armed)


def main() -> None:
    servers, name, kind, *death = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(levelname)s %(name)s %(message)s")
    if death:
        die_at(death[0])
    stage, handler = {
        "effect": (EFFECT, Attempting()),
        "reducer": (REDUCER, Gathering()),
        "source": (SOURCE, Counting(300)),
    }[kind]
    run_loop(run_stage(stage, make_run(name, servers), handler))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
