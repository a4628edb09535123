"""The topics, as data. Names are without the run's prefix.

Records of one group carry the same key, and all grouped topics have the same number of partitions, so a group stays in one
partition number from end to end.
"""

from gagar import records
from gagar.stream.spec import Topic

TEXT_BYTES = 16 << 20
"""Bound of records with transcripts and patches."""
TOKENS_BYTES = 64 << 20
"""Bound of one attempt's token arrays."""

ROLLOUT_REQUESTS = Topic(name="rollout-requests", record=records.RolloutRequest, kept="with the run")
TRAJECTORIES = Topic(name="trajectories", record=records.Trajectory, kept="by time", max_record_bytes=TEXT_BYTES)
TRAJECTORY_TOKENS = Topic(
    name="trajectory-tokens", record=records.TrajectoryTokens, kept="by bytes", max_record_bytes=TOKENS_BYTES
)
VERDICTS = Topic(name="verdicts", record=records.Verdict, kept="by time")
GROUPS = Topic(name="groups", record=records.Group, kept="with the run", max_record_bytes=TEXT_BYTES)
GRADED_GROUPS = Topic(name="graded-groups", record=records.GradedGroup, kept="with the run", max_record_bytes=TEXT_BYTES)
ADVANTAGES = Topic(name="advantages", record=records.GroupAdvantages, kept="with the run")
OUTCOMES = Topic(name="outcomes", record=records.Outcome, kept="compacted")
POLICY_VERSIONS = Topic(name="policy-versions", record=records.PolicyVersion, kept="compacted", is_grouped=False)
DEAD_LETTERS = Topic(name="dead-letters", record=records.DeadLetter, kept="by time", max_record_bytes=TOKENS_BYTES + (1 << 20))
RUN_SETTINGS = Topic(name="run-settings", record=records.RunSettings, kept="compacted", is_grouped=False)

TOPICS: tuple[Topic, ...] = (
    ROLLOUT_REQUESTS,
    TRAJECTORIES,
    TRAJECTORY_TOKENS,
    VERDICTS,
    GROUPS,
    GRADED_GROUPS,
    ADVANTAGES,
    OUTCOMES,
    POLICY_VERSIONS,
    DEAD_LETTERS,
)
"""Of the stream: what stages write."""
ALL_TOPICS: tuple[Topic, ...] = (*TOPICS, RUN_SETTINGS)
"""Of a run on its cluster; whoever starts the run writes its settings."""
