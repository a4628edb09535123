"""What all lanes of a stage in one process share."""

from collections.abc import Mapping
from typing import NamedTuple

from gagar.stream.lanes.budget import Budget, Held, Holder
from gagar.stream.lanes.retry import Retry
from gagar.stream.limits import Counters, DeadLetterLimits, RuntimeLimits
from gagar.stream.routing import Router
from gagar.stream.spec import Stage, Topic
from gagar.stream.transport import Transport


class StageContext(NamedTuple):
    """See the module."""

    stage: Stage
    transport: Transport
    limits: RuntimeLimits
    counters: Counters
    router: Router
    retry: Retry
    budget: Budget
    dead_letter_limits: DeadLetterLimits

    @classmethod
    def of(
        cls, stage: Stage, transport: Transport, dead_letters: Topic, limits: RuntimeLimits, lanes: Mapping[int, Holder]
    ) -> "StageContext":
        """`lanes`: those of the process, by partition number, as they come and go."""
        counters, router = Counters(), Router(stage, dead_letters)
        retry = Retry(stage.name, router, limits, counters)
        budget = Budget(Held(limits.max_input_bytes, limits.max_output_bytes), lanes)
        return cls(stage, transport, limits, counters, router, retry, budget, DeadLetterLimits(stage.name, limits))
