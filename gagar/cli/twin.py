"""A run is made in one place: whoever starts a whole one makes sure that no other does, before anything of it is touched.

On the local broker a lock in the run's directory does it; on a cluster, which directories do not share, the consumer group
of the sampler, of which a run has one.
"""

import time

from gagar.config import KafkaTable, Run
from gagar.errors import UnavailableError
from gagar.stream.kafka.admin import Admin
from topology.stages import SAMPLER

WAIT_S = 10.0
"""One that has just died is a member until its session ends."""
POLL_S = 1.0


def check_no_twin(run: Run, kafka: KafkaTable, wait_s: float = WAIT_S) -> None:
    """Raises UnavailableError if a sampler of the run is at work, and goes on to be for `wait_s`."""
    deadline = time.monotonic() + wait_s
    with Admin(kafka) as admin:
        while admin.has_members([run.topic(SAMPLER.name)]):
            if time.monotonic() >= deadline:
                raise UnavailableError(
                    f"run {run.run.name}: expected no other `gagar up` of it on {kafka.bootstrap_servers}, got a sampler at "
                    "work; end that one, take another run.name, or start single stages beside it by `gagar run STAGE`"
                )
            time.sleep(POLL_S)
