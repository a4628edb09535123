"""An attempt as records: its trajectory, and the token arrays that the trajectory refers to.

Every attempt gives exactly one trajectory. What cannot be sent (too large, arrays that do not fit together) ends as a `failed`
one with the reason, not as a lost one.
"""

from msgspec.structs import replace

from gagar.agent.loop import Rollout
from gagar.errors import BadRecordError
from gagar.records import AttemptFacts, LogRef, RolloutRequest, Trajectory, TrajectoryTokens, check_alignment, encode
from gagar.stream.handlers import Delivery, Linked, Output

MARGIN_BYTES = 4096
"""Of a record's bound, for key, headers and the reference that is filled in."""


def outputs_of(
    delivery: Delivery[RolloutRequest], rollout: Rollout, max_tokens_bytes: int, max_trajectory_bytes: int
) -> list[Output]:
    """The attempt's records: one linked pair, or a trajectory alone if nothing was sampled or its tokens cannot be sent."""
    request = delivery.record
    trajectory = bounded(trajectory_of(delivery, rollout), max_trajectory_bytes - MARGIN_BYTES)
    if rollout.context.num_sampled == 0:
        return [trajectory]
    tokens = rollout.context.tokens(request.group_id, request.sample_index)
    try:
        check_alignment(tokens)
    except BadRecordError as error:
        return [_without_tokens(trajectory, str(error), infrastructure=True)]
    num_bytes = tokens_bytes(tokens)
    if num_bytes > max_tokens_bytes - MARGIN_BYTES:
        limit = max_tokens_bytes - MARGIN_BYTES
        return [_without_tokens(trajectory, f"trajectory-tokens: expected at most {limit} bytes, got {num_bytes}")]

    def refer(ref: LogRef) -> Trajectory:
        return replace(trajectory, attempt=replace(trajectory.attempt, tokens=ref))

    return [Linked(first=tokens, then=refer)]


def trajectory_of(delivery: Delivery[RolloutRequest], rollout: Rollout) -> Trajectory:
    """The record of an attempt, with no reference to tokens yet."""
    request, context = delivery.record, rollout.context
    oldest, newest = context.version_range
    return Trajectory(
        group_id=request.group_id,
        sample_index=request.sample_index,
        task_id=request.task_id,
        purpose=request.purpose,
        attempt=AttemptFacts(
            request=delivery.ref,
            tokens=None,
            status=rollout.status,
            num_turns=rollout.num_turns,
            num_prompt_tokens=len(context.token_ids) - context.num_sampled,
            num_sampled_tokens=context.num_sampled,
            policy_version_min=oldest,
            policy_version_max=newest,
        ),
        failure=rollout.failure,
        infrastructure=rollout.infrastructure,
        messages=rollout.messages,
        patch=rollout.result,
        started_at=rollout.started_at,
        duration_s=rollout.duration_s,
        times=rollout.times,
        generation_s=rollout.generation_s,
    )


def bounded(trajectory: Trajectory, max_bytes: int) -> Trajectory:
    """The trajectory, or without its texts and `failed` if it is larger than `max_bytes`."""
    num_bytes = len(encode(trajectory))
    if num_bytes <= max_bytes:
        return trajectory
    failure = f"trajectory: expected at most {max_bytes} bytes, got {num_bytes}"
    attempt = replace(trajectory.attempt, status="failed")
    return replace(trajectory, attempt=attempt, failure=failure, messages=[], patch="")


def tokens_bytes(tokens: TrajectoryTokens) -> int:
    """Bytes of the arrays."""
    arrays = (tokens.token_ids, tokens.loss_mask, tokens.behaviour_logprobs, tokens.policy_versions)
    return sum(array.data.nbytes for array in arrays)


def _without_tokens(trajectory: Trajectory, failure: str, infrastructure: bool = False) -> Trajectory:
    attempt = replace(trajectory.attempt, status="failed")
    is_infrastructure = infrastructure or trajectory.infrastructure
    return replace(trajectory, attempt=attempt, failure=failure, infrastructure=is_infrastructure, patch="")
