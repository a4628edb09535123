"""Every record that travels on a topic, and the functions that put it into bytes.

Map-encoded MessagePack with a tag `<name>/<version>`. A record evolves only by adding a defaulted field; golden bytes of each
released version guard that. Unknown fields are ignored, unknown tags are bad records. Times are Unix seconds. What a backlog
holds by the ten thousand is kept out of garbage collection (`gc=False`): it is frozen, so it cannot be part of a cycle.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from gagar.arrays import Tensor
from gagar.errors import BadRecordError

Purpose = Literal["training", "evaluation"]
TrajectoryStatus = Literal["completed", "truncated", "failed", "timeout", "cancelled"]
VerdictStatus = Literal["passed", "failed", "invalid"]
"""`invalid`: an infrastructure fault; the member is left out of all statistics, never counted as reward 0."""
OutcomeKind = Literal["trained", "evaluated", "dropped"]
DropReason = Literal[
    "", "all_passed", "all_failed", "too_few_valid", "stale", "untrainable", "non_finite", "ended", "lost", "dead_letter"
]
"""The gatherer's: all_passed, all_failed, too_few_valid, lost (no verdict came in time). The learner's: stale, untrainable (no
sampled token with an advantage), non_finite (loss or gradient of its batch was no number), ended (the run was over), lost (its
tokens are gone or wrong). Any stage's: dead_letter."""


RUN_FACT = msgspec.Meta(extra={"is_run_fact": True})
"""Marks a field that tells when or how long a handler worked, not what it answered: on the same input its next run may write
another value. Comparisons of records (`gagar.replay.comparing`) leave it out."""


class LogRef(msgspec.Struct, frozen=True, kw_only=True, order=True, gc=False):
    """Where a record lies. Example: `trajectory-tokens[3]@118`."""

    topic: str
    """Its name without the run's prefix."""
    partition: int
    """From 0."""
    offset: int
    """In the partition."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class RolloutRequest(msgspec.Struct, frozen=True, kw_only=True, tag="rollout-request/1"):
    """One attempt to make. Written by the sampler, read by rollout worker and gatherer."""

    group_id: str
    """Unique in the run, the key of every record of the group: `t-<index>`, or `e-<step>-<index>` of an evaluation."""
    sample_index: int
    """0 .. group_size - 1."""
    group_size: int
    """Attempts of the group."""
    task_id: str
    """Id of the task, in one of the run's task sets."""
    purpose: Purpose
    """evaluation: measured on a held-out task, never trained on."""
    seed: int
    """Seeds the sampling of this attempt."""
    step: int
    """Step of the newest policy version that the sampler knew; in an evaluation, the step that is evaluated."""
    deadline_s: float
    """The rollout has to end so many seconds after the broker time of this record: no host's clock counts."""
    agent_timeout_s: float
    """Seconds that the agent's own work may take. One that takes longer has failed; one that meets the deadline before has had
    to wait for too long, and is `invalid`."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a transcript."""

    role: Literal["system", "user", "assistant"]
    """Who speaks."""
    content: str
    """What the model was given, or what it sampled without special tokens."""


class AttemptFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the trajectory, the verdict and the advantage of one attempt have in common; written by the rollout worker."""

    request: LogRef
    """Where the `RolloutRequest` of the attempt lies."""
    tokens: LogRef | None
    """Where its `TrajectoryTokens` lie; None if nothing was sampled."""
    status: TrajectoryStatus
    """How the attempt ended."""
    num_turns: int = 0
    """Completions with at least one token."""
    num_prompt_tokens: int = 0
    """Tokens that were given: prompt and observations."""
    num_sampled_tokens: int = 0
    """Tokens that a policy sampled."""
    policy_version_min: int = -1
    """Oldest policy version that sampled a token of the attempt; -1 if none was sampled."""
    policy_version_max: int = -1
    """Newest policy version that sampled a token of the attempt; -1 if none was sampled."""

    def sampled_tokens(self) -> LogRef:
        """Where its tokens lie; raises BadRecordError for an attempt without any."""
        if self.tokens is None:
            raise BadRecordError(f"attempt at {self.request}: expected tokens, got none")
        return self.tokens


class AttemptTimes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where the seconds of an attempt went, of the try that ended it: what outages and restarts have broken off is in none."""

    queue_s: float = 0.0
    """Waiting in the worker for a policy and for a place."""
    engine_s: float = 0.0
    """Waiting for the engine: before the first turn and between turns."""
    sandbox_s: float = 0.0
    """Waiting for a sandbox, for what is read from it after `submit`, and for its end."""
    agent_s: float = 0.0
    """The agent's own work: sampling, its commands, and what lies between. Only this counts against `agent_timeout_s`."""

    @property
    def total_s(self) -> float:
        """All of them; the attempt's `duration_s`."""
        return self.queue_s + self.engine_s + self.sandbox_s + self.agent_s


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, tag="trajectory/1"):
    """What people and graders read of one attempt. Written by the rollout worker; read by verifier; by reference: grader."""

    group_id: str
    sample_index: int
    task_id: str
    purpose: Purpose
    attempt: AttemptFacts
    failure: str = ""
    """Why the status is not `completed`, for people."""
    infrastructure: bool = False
    """The attempt ended on account of sandbox, engine or worker, not of the agent: because one of them was down, or because the
    deadline came while some of the agent's own time was left."""
    messages: list[Message] = []
    """In order, from the system prompt, if there is one, to the last completion."""
    patch: str = ""
    """Unified diff against the task's base tree; empty if nothing was changed."""
    started_at: float = 0.0
    """When the worker took the request up, Unix seconds."""
    duration_s: float = 0.0
    """Seconds from there to the end of the attempt."""
    times: AttemptTimes = AttemptTimes()
    """What they went to; they add up to `duration_s`."""
    generation_s: float = 0.0
    """The part of `times.agent_s` spent sampling."""


class TrajectoryTokens(msgspec.Struct, frozen=True, kw_only=True, tag="trajectory-tokens/1"):
    """What the learner reads of one attempt: aligned arrays [T]. `check_alignment` proves it."""

    group_id: str
    sample_index: int
    token_ids: Tensor
    """i4 [T]: prompt and sampled tokens in context order, exactly as sampled."""
    loss_mask: Tensor
    """u1 [T]: 1 on sampled tokens only."""
    behaviour_logprobs: Tensor
    """f4 [T]: log-probability under the distribution really sampled from; 0 where loss_mask is 0."""
    policy_versions: Tensor
    """i4 [T]: version that sampled the token; -1 where loss_mask is 0."""


class PatchMeasures(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Facts of a patch by which the `rules` grader orders, and reports count."""

    num_added_lines: int = 0
    """Lines that the patch adds, over all files."""
    num_removed_lines: int = 0
    """Lines that the patch removes, over all files."""
    num_files: int = 0
    """Files that the patch changes, makes or removes."""
    num_files_out_of_scope: int = 0
    """Files that the patch touches and the task's scope does not name."""
    num_dead_statements: int = 0
    """Unused names and imports, unreachable or effect-free statements that the patch brought in."""

    @property
    def is_clean(self) -> bool:
        """No dead statement and no edit outside the task."""
        return self.num_files_out_of_scope == 0 and self.num_dead_statements == 0


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag="verdict/1", gc=False):
    """What the tests said of one attempt. Written by the verifier, read by the gatherer."""

    group_id: str
    sample_index: int
    task_id: str
    purpose: Purpose
    attempt: AttemptFacts
    trajectory: LogRef
    """The `Trajectory` that was tested."""
    status: VerdictStatus
    """passed: every expected test ran and passed, and nothing raised an alarm."""
    reason: str = ""
    """Why it did not pass, for people; first line only."""
    num_tests_expected: int = 0
    """Tests that the task names."""
    num_tests_passed: int = 0
    """Tests named by the task that passed."""
    measures: PatchMeasures = PatchMeasures()
    """Measures of the patch against the task's tree; all 0 if nothing was tested."""
    patch_digest: str = ""
    """sha256 of the normalised patch; equal digests are the same solution."""
    duration_s: Annotated[float, RUN_FACT] = 0.0
    """Seconds in the sandbox."""

    @property
    def reward(self) -> float:
        """1.0 if passed, else 0.0; meaningless if the status is `invalid`."""
        return 1.0 if self.status == "passed" else 0.0


class Group(msgspec.Struct, frozen=True, kw_only=True, tag="group/1"):
    """A complete group with passing and failing valid members. Written by the gatherer, read by the grader."""

    group_id: str
    task_id: str
    group_size: int
    members: list[Verdict]
    """Valid members only, by sample_index."""
    num_invalid: int = 0
    """Members left out on account of the infrastructure."""
    num_missing: int = 0
    """Members without a verdict at the deadline."""


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """The grader's judgement of one passing member."""

    sample_index: int
    tier: Literal[1, 2, 3]
    """1 is the best; what a tier means is the grader's to say."""
    position: int
    """Place in the whole ranking from 0; equal positions are ties."""
    evidence: list[str] = []
    """What was held against it."""


class GradedGroup(msgspec.Struct, frozen=True, kw_only=True, tag="graded-group/1"):
    """A group and the ranking of its passing members. Written by the grader, read by the advantage publisher."""

    group: Group
    """As the gatherer wrote it."""
    grader: str
    """Kind and version of the grader."""
    grades: list[Grade] = []
    """One for each passing member; empty if the group was not graded."""
    fallback: str = ""
    """Why the group keeps its GRPO advantages; empty if the grades count."""

    @property
    def group_id(self) -> str:
        return self.group.group_id


class MemberAdvantage(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory to train on."""

    sample_index: int
    attempt: AttemptFacts
    trajectory: LogRef
    reward: float
    """1.0 if passed, else 0.0."""
    grpo_advantage: float
    """R_i - mean(R) over valid members."""
    weight: float
    """Factor f_i in (0, 1]; 1 for failing members."""
    advantage: float
    """After redistribution."""

    def __post_init__(self) -> None:
        if self.attempt.tokens is None:
            raise ValueError("attempt.tokens: expected where the tokens to train on lie, got none")


class GroupAdvantages(msgspec.Struct, frozen=True, kw_only=True, tag="group-advantages/1"):
    """Redistributed advantages of one group. Written by the advantage publisher, read by the learner."""

    group_id: str
    task_id: str
    members: list[MemberAdvantage]
    """Valid members that have tokens, by sample_index."""
    grader: str
    fallback: str
    rescale: float
    """Lambda: what restores the passing sum."""
    was_capped: bool
    """Lambda met its bound: the sum law holds only after recentring."""
    shift: float = 0.0
    """What recentring took from every member; 0 if not capped."""
    num_requested: int = 0
    """Attempts that were asked for."""
    num_valid: int = 0
    """The baseline's count: members, and valid ones that have no tokens (they failed)."""
    num_passed: int = 0
    """Valid members that passed."""
    num_clean: int = 0
    """Passing members without dead statement or edit outside the task."""
    num_sampled_tokens: int = 0
    """Over valid members."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome/1"):
    """How a group ended; exactly one counts for each requested group.

    Written by gatherer and learner, and by a stage that dead-letters a whole group; read by sampler, learner and audit.
    """

    group_id: str
    task_id: str
    purpose: Purpose
    kind: OutcomeKind
    """How the group ended."""
    reason: DropReason = ""
    """Why it was dropped; empty otherwise."""
    run_id: str = ""
    """The learner's run, if `trained`, or dropped by the learner: then the outcome counts only in the surviving lineage."""
    step: int = -1
    """The step that it was trained at (or that the learner was making when it dropped it), or the evaluation round that it
    belongs to; -1 if another stage dropped it."""
    policy_version_min: int = -1
    """Oldest policy version that sampled a token of a valid member; -1 if unknown."""
    policy_version_max: int = -1
    """Newest policy version that sampled a token of a valid member; -1 if unknown."""
    staleness: int = -1
    """Steps between the oldest token's version and the version trained; -1 if not trained."""
    num_requested: int = 0
    """Attempts that were asked for."""
    num_valid: int = 0
    """Members that the infrastructure did not fail."""
    num_passed: int = 0
    """Valid members that passed."""
    num_clean: int = 0
    """Passing members without dead statement or edit outside the task."""
    num_sampled_tokens: int = 0
    """Over valid members."""
    at: Annotated[float, RUN_FACT] = 0.0
    """When the end was decided, Unix seconds."""


class LineageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a run that survive: those up to and with `last_step` of `run_id`."""

    run_id: str
    last_step: int
    """The newest step of `run_id` that counts."""


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True, tag="policy-version/1"):
    """A policy that the rollout workers can load. Written by the learner, read by rollout worker and sampler."""

    run_id: str
    """The learner's run, a new one at each start."""
    version: int
    """Grows by one each step; the version that exists after `step` optimizer steps."""
    step: int
    """Optimizer steps that made it."""
    lineage: list[LineageEntry] = []
    """Earlier runs that this one continues, oldest first."""
    location: str
    """Directory of a Hugging Face model with safetensors weights."""
    checksum: str
    """`weights_checksum` of that directory: sha256, hexadecimal."""
    is_last: bool = False
    """The planned end: no step follows."""
    metrics: dict[str, float] = {}
    """Of the step that made it: loss, grad_norm, clip_fraction, staleness_mean, ..."""
    created_at: float = 0.0
    """When its files were complete."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, tag="dead-letter/1"):
    """A rejected record as it came, and why. Written by every stage, read by people."""

    stage: str
    """Name of the stage that rejected the record."""
    source: LogRef
    """Where the record lies."""
    error: str
    """Message, and the traceback if it was not a bad record."""
    key: bytes
    """Key of the record, as it came."""
    value: bytes
    """Value of the record, as it came."""
    headers: list[tuple[str, bytes]] = []
    """Headers of the record, as they came."""
    at: float = 0.0
    """When the record was rejected, Unix seconds."""
    retried_as: LogRef | None = None
    """None, unless this tells of another dead letter, at `source`, that it was retried: where the copy of its record lies."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, tag="run-settings/1"):
    """The settings that a run was started with. Written by whoever starts the run, read by each process of a stage first."""

    settings: dict[str, Any]
    """Value in effect by dotted key of the run file, of keys that were left out too; no address and no secret is among them."""
    host: str
    """Machine on which the run was started."""
    directory: str
    """Directory of the run there: `<run.dir>/runs/<run.name>`."""
    at: float
    """When it was started with these settings, Unix seconds."""
    imported_from: str = ""
    """Of a run that was imported from a file: which one, and what it is a part of. Then it is to be read and replayed, and no
    stage works on it; host, directory and time are those of the run that it comes from."""


Record = (
    RolloutRequest
    | Trajectory
    | TrajectoryTokens
    | Verdict
    | Group
    | GradedGroup
    | GroupAdvantages
    | Outcome
    | PolicyVersion
    | DeadLetter
    | RunSettings
)
R = TypeVar("R", bound=msgspec.Struct)

RECORDS_FORMAT = 1
"""Processes of one run have the same. It rises with a new tag, and with a new field that a stage in the middle has to pass on:
one that does not know it would lose it."""

SENTINEL_LOGPROB = -9999.0
"""How some engines write minus infinity; a bad record."""

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[Record]] = {}


def encode(record: Record) -> bytes:
    """Bytes of a record, the tag included."""
    return _encoder.encode(record)


def decode(record_type: type[R], data: bytes | memoryview) -> R:
    """The record in `data`; raises BadRecordError if it is another one or malformed. Arrays inside share memory with `data`."""
    decoder = _decoders.get(record_type)
    if decoder is None:
        decoder = _decoders[record_type] = msgspec.msgpack.Decoder(record_type)
    try:
        return decoder.decode(data)  # type: ignore[return-value]
    except msgspec.DecodeError as error:
        raise BadRecordError(f"{record_type.__name__}: expected its MessagePack form, got {error}") from error


def check_alignment(tokens: TrajectoryTokens) -> None:
    """Raises BadRecordError unless all arrays have one length, the mask is 0/1 and sampled log-probabilities are real ones."""
    import numpy as np

    ids, mask = tokens.token_ids.view(), tokens.loss_mask.view()
    logprobs, versions = tokens.behaviour_logprobs.view(), tokens.policy_versions.view()
    what = f"trajectory-tokens {tokens.group_id}/{tokens.sample_index}"
    lengths = {len(ids), len(mask), len(logprobs), len(versions)}
    if len(lengths) != 1:
        raise BadRecordError(f"{what}: expected arrays of one length, got {sorted(lengths)}")
    kinds = (tokens.token_ids.dtype, tokens.loss_mask.dtype, tokens.behaviour_logprobs.dtype, tokens.policy_versions.dtype)
    if kinds != ("i4", "u1", "f4", "i4"):
        raise BadRecordError(f"{what}: expected dtypes i4 u1 f4 i4, got {' '.join(kinds)}")
    if mask.max(initial=0) > 1:
        raise BadRecordError(f"{what}: expected a loss_mask of 0 and 1, got {mask.max()}")
    sampled = mask == 1
    if not np.isfinite(logprobs).all() or (logprobs <= SENTINEL_LOGPROB).any() or (logprobs[sampled] > 0).any():
        raise BadRecordError(f"{what}: expected finite log-probabilities <= 0, got {logprobs.min()} to {logprobs.max()}")
    if (versions[sampled] < 0).any() or (ids < 0).any():
        raise BadRecordError(f"{what}: expected token ids and versions of sampled tokens >= 0, got a negative one")
