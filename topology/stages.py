"""The stages, as data: a line for each. `topology.graph` checks and draws them; `gagar up` starts them in this order.

A stage's outputs are in the order in which the records of one transaction follow from each other.
"""

from gagar.stream.spec import Stage, Topic
from topology import topics

SAMPLER = Stage(
    name="sampler",
    module="producers.sampler",
    kind="source",
    tables=(topics.OUTCOMES, topics.POLICY_VERSIONS),
    outputs=(topics.ROLLOUT_REQUESTS,),
)
ROLLOUT_WORKER = Stage(
    name="rollout-worker",
    module="producers.rollout_worker",
    kind="effect",
    inputs=(topics.ROLLOUT_REQUESTS,),
    tables=(topics.POLICY_VERSIONS,),
    outputs=(topics.TRAJECTORY_TOKENS, topics.TRAJECTORIES),
)
VERIFIER = Stage(
    name="verifier",
    module="consumers.verifier",
    kind="effect",
    inputs=(topics.TRAJECTORIES,),
    outputs=(topics.VERDICTS,),
)
GATHERER = Stage(
    name="gatherer",
    module="consumers.gatherer",
    kind="reducer",
    inputs=(topics.ROLLOUT_REQUESTS, topics.VERDICTS),
    outputs=(topics.GROUPS, topics.OUTCOMES),
)
GRADER = Stage(
    name="grader",
    module="consumers.grader",
    kind="effect",
    inputs=(topics.GROUPS,),
    references=(topics.TRAJECTORIES,),
    outputs=(topics.GRADED_GROUPS, topics.OUTCOMES),
    holds_groups=True,
)
ADVANTAGE_PUBLISHER = Stage(
    name="advantage-publisher",
    module="consumers.advantage_publisher",
    kind="transform",
    inputs=(topics.GRADED_GROUPS,),
    outputs=(topics.ADVANTAGES, topics.OUTCOMES),
    holds_groups=True,
)
LEARNER = Stage(
    name="learner",
    module="consumers.learner.stage",
    kind="learner",
    inputs=(topics.ADVANTAGES,),
    tables=(topics.OUTCOMES, topics.POLICY_VERSIONS),
    references=(topics.TRAJECTORY_TOKENS,),
    outputs=(topics.POLICY_VERSIONS, topics.OUTCOMES),
    holds_groups=True,
)

STAGES: tuple[Stage, ...] = (SAMPLER, ROLLOUT_WORKER, VERIFIER, GATHERER, GRADER, ADVANTAGE_PUBLISHER, LEARNER)
"""Every stage also writes `dead-letters`."""


def upstream_first() -> tuple[Topic, ...]:
    """Every topic, after those from which its records follow: in the order of the last stages that write them."""
    topic_of = {topic.name: topic for stage in reversed(STAGES) for topic in reversed(stage.outputs)}
    return (*reversed(topic_of.values()), topics.DEAD_LETTERS)
