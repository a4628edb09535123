"""What a run of the chaos suite is: told to every process as a file.

The stages are the topology's, with smaller topics, so that a record too large for them is cheap; and the topics on the broker
are smaller still than the stages believe, so that some records are refused in the middle of a transaction.
"""

from pathlib import Path
from typing import Any

import msgspec

from gagar.config import Run, TrainingTable
from gagar.stream.limits import RuntimeLimits
from gagar.stream.spec import Stage, Topic
from tests.chaos.expected_outcomes import GROUP_SIZE, ExpectedOutcomes
from tests.contract.world import make_run
from topology.stages import STAGES
from topology.topics import DEAD_LETTERS, TOPICS

BELIEVED_BYTES = 256 << 10
"""The bound of a record, as the stages know it."""
REAL_BYTES = 32 << 10
"""As the topics on the broker have it; the administration adds 64 KiB for the envelope."""
OVERSIZED_BYTES = 300 << 10
REFUSED_BYTES = 200 << 10
"""Between the two bounds, and too much even when compressed."""
NEVER_STALE = 1_000_000
"""The policy version that all tokens bear: beyond any step, so that no outcome depends on when a group was trained."""
SOAK_GROUPS = 20_000
"""From here on a run is a soak: see `SOAK`, and its memory is judged."""
LONG_GROUPS = 2000
"""From here on a run lasts so long that more patient deadlines cost nothing."""
WITHOUT_QUORUM_S, LONG_WITHOUT_QUORUM_S = 12.0, 60.0
"""How long two of three brokers are away, in a short run and in a long one."""
STAGE_NAMES = tuple(stage.name for stage in STAGES)


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a run may go, and how often it is shot at."""

    max_unresolved: int = 400
    """Groups in flight."""
    groups_per_unit: int = 1
    """Groups that the sampler asks for in one transaction."""
    groups_per_step: int = 1
    """Groups that a step of the learner trains."""
    checkpoint_every: int = 25
    """Steps from one checkpoint of the learner to the next."""
    commit_gap_s: float = RuntimeLimits().commit_gap_s
    """Between two transactions of a lane."""
    event_gap_s: tuple[float, float] = (3.0, 8.0)
    """From one event to the next, at least and at most."""


SOAK = Pace(
    max_unresolved=1200,
    groups_per_unit=8,
    groups_per_step=8,
    checkpoint_every=10,
    commit_gap_s=0.5,
    event_gap_s=(10.0, 26.0),
)
"""Of a soak. Small transactions, each of which can be interrupted, are the point of a short run, and most of its cost; here
what stands above a stage that is away goes on, and a process lives long enough to show what it keeps."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    servers: str
    name: str
    """Of the run: the prefix of its topics."""
    directory: str
    """Plan, logs, traces, markers, checkpoints."""
    seed: int
    num_groups: int
    """Training groups, the padding among them."""
    lossy_deadline_s: float
    """Of groups that a member is going to miss; all others have an hour."""
    groups_per_s: float
    """At most so many are asked for."""
    started_at: float
    num_brokers: int = 1
    pace: Pace = Pace()
    num_padding: int = 0
    """See `ExpectedOutcomes`."""

    @classmethod
    def read(cls, path: Path) -> "Plan":
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def write(self) -> Path:
        """The file that `read` takes."""
        path = Path(self.directory) / "plan.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(self))
        return path

    @property
    def expected(self) -> ExpectedOutcomes:
        return ExpectedOutcomes(self.seed, self.num_groups, self.num_padding)

    @property
    def without_quorum_s(self) -> float:
        return LONG_WITHOUT_QUORUM_S if self.num_groups >= LONG_GROUPS else WITHOUT_QUORUM_S

    @property
    def run(self) -> Run:
        """The run file's tables. The end of the run is not the learner's to plan."""
        training = TrainingTable(
            group_size=GROUP_SIZE,
            groups_per_step=self.pace.groups_per_step,
            max_staleness=64,
            num_steps=NEVER_STALE,
            evaluation_group_size=GROUP_SIZE,
            rollout_deadline_s=3600.0,
        )
        run = make_run(self.name, self.servers, self.directory)
        kafka = msgspec.structs.replace(run.kafka, replication_factor=self.num_brokers)
        return msgspec.structs.replace(run, kafka=kafka, training=training)


def stage_of(name: str) -> Stage:
    """A stage of the topology with the bounds that it believes in."""
    [stage] = [stage for stage in STAGES if stage.name == name]
    shrunk: dict[str, Any] = {
        role: tuple(_bounded(topic, BELIEVED_BYTES) for topic in getattr(stage, role))
        for role in ("inputs", "tables", "references", "outputs")
    }
    return msgspec.structs.replace(stage, **shrunk)


def real_topics() -> list[Topic]:
    """The topics as they are on the broker."""
    return [topic if topic is DEAD_LETTERS else _bounded(topic, REAL_BYTES) for topic in TOPICS]


def _bounded(topic: Topic, max_record_bytes: int) -> Topic:
    return msgspec.structs.replace(topic, max_record_bytes=max_record_bytes)
