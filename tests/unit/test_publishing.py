"""Attempts as records: always one trajectory, linked to tokens that fit together."""

import pytest

from gagar.agent.loop import Rollout
from gagar.agent.publishing import MARGIN_BYTES, outputs_of
from gagar.engine.protocol import Completion
from gagar.records import LogRef, Message, Trajectory, TrajectoryTokens, decode, encode
from gagar.stream.handlers import Linked, Output
from tests.builders import make_delivery, make_request

LIMIT = 1 << 16


def make_attempt(num_sampled: int = 3, logprob: float = -0.5, text: str = "hello") -> Rollout:
    attempt = Rollout(status="completed", result="p", messages=[Message(role="user", content=text)], num_turns=1)
    attempt.context.give([5, 6])
    versions = list(range(num_sampled))
    ids, logprobs = [9] * num_sampled, [logprob] * num_sampled
    attempt.context.sampled(
        Completion(token_ids=ids, logprobs=logprobs, policy_versions=versions, finish="stop", sampling_s=1.5)
    )
    return attempt


def publish(attempt: Rollout, tokens_bytes: int = LIMIT, trajectory_bytes: int = LIMIT) -> list[Output]:
    delivery = make_delivery(make_request("g1", 2), "rollout-requests", offset=8)
    return outputs_of(delivery, attempt, tokens_bytes, trajectory_bytes)


def only_trajectory(outputs: list[Output]) -> Trajectory:
    assert len(outputs) == 1
    assert isinstance(outputs[0], Trajectory)
    return outputs[0]


def test_tokens_go_first_and_the_trajectory_refers_to_them() -> None:
    outputs = publish(make_attempt())
    assert len(outputs) == 1
    assert isinstance(outputs[0], Linked)
    ref = LogRef(topic="trajectory-tokens", partition=1, offset=44)
    trajectory = outputs[0].then(ref)
    assert isinstance(trajectory, Trajectory)
    assert trajectory.attempt.tokens == ref
    assert (trajectory.group_id, trajectory.sample_index, trajectory.attempt.request.offset) == ("g1", 2, 8)
    assert (trajectory.attempt.num_prompt_tokens, trajectory.attempt.num_sampled_tokens) == (2, 3)
    assert (trajectory.attempt.policy_version_min, trajectory.attempt.policy_version_max) == (0, 2)
    tokens = outputs[0].first
    assert isinstance(tokens, TrajectoryTokens)
    back = decode(TrajectoryTokens, encode(tokens))
    assert back.token_ids.view().tolist() == [5, 6, 9, 9, 9]
    assert back.loss_mask.view().tolist() == [0, 0, 1, 1, 1]
    assert back.behaviour_logprobs.view().tolist() == [0, 0, -0.5, -0.5, -0.5]
    assert back.policy_versions.view().tolist() == [-1, -1, 0, 1, 2]


def test_an_attempt_without_sampled_tokens_is_a_trajectory_alone() -> None:
    trajectory = only_trajectory(publish(make_attempt(num_sampled=0)))
    facts = trajectory.attempt
    assert (facts.tokens, facts.policy_version_max, facts.num_prompt_tokens) == (None, -1, 2)


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), -9999.0, 0.5])
def test_impossible_log_probabilities_end_as_a_fault_of_the_infrastructure(logprob: float) -> None:
    trajectory = only_trajectory(publish(make_attempt(logprob=logprob)))
    assert (trajectory.attempt.status, trajectory.infrastructure, trajectory.attempt.tokens) == ("failed", True, None)
    assert "expected finite log-probabilities" in trajectory.failure


def test_tokens_over_the_limit_end_as_a_failed_trajectory() -> None:
    trajectory = only_trajectory(publish(make_attempt(num_sampled=1000), tokens_bytes=MARGIN_BYTES + 13_000))
    assert (trajectory.attempt.status, trajectory.infrastructure) == ("failed", False)
    assert trajectory.failure == "trajectory-tokens: expected at most 13000 bytes, got 13026"


def test_tokens_over_the_limit_do_not_make_an_agents_failure_of_what_the_infrastructure_ended() -> None:
    attempt = make_attempt(num_sampled=1000)
    attempt.status, attempt.infrastructure = "timeout", True
    trajectory = only_trajectory(publish(attempt, tokens_bytes=MARGIN_BYTES + 13_000))
    assert (trajectory.attempt.status, trajectory.infrastructure) == ("failed", True)


def test_texts_over_the_limit_are_left_out_and_fail_it_but_tokens_stay() -> None:
    outputs = publish(make_attempt(text="x" * 20_000), trajectory_bytes=MARGIN_BYTES + 10_000)
    assert isinstance(outputs[0], Linked)
    trajectory = outputs[0].then(LogRef(topic="t", partition=0, offset=0))
    assert isinstance(trajectory, Trajectory)
    assert (trajectory.attempt.status, trajectory.messages, trajectory.patch) == ("failed", [], "")
    assert "trajectory: expected at most 10000 bytes" in trajectory.failure
    assert len(encode(trajectory)) < MARGIN_BYTES + 10_000
