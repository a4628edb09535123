"""Losses and their sums: gradients by definition, bounds of the clip, the same for any split."""

import math

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gagar.training.losses.ppo_clip import MAX_LOG_RATIO, PpoClipLoss
from gagar.training.losses.protocol import TokenBatch, TokenLoss, token_logprobs, token_mean
from gagar.training.losses.sums import LossSums

pytestmark = pytest.mark.slow

numbers = st.floats(-5, 5, allow_nan=False)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ppo_clip(
    clip_low: float, clip_high: float, learner: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor
) -> TokenLoss:
    """The loss of tokens of one trajectory, from their log-probabilities."""
    rows = torch.zeros(len(learner), dtype=torch.int64)
    return PpoClipLoss(clip_low, clip_high)(TokenBatch(learner, behaviour, advantages, rows))


def ratio_of(ratio: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Learner and behaviour log-probabilities whose ratio is `ratio`."""
    return column(math.log(ratio) - 1.0), column(-1.0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "is_clipped"),
    [
        (1.0, 0.7, -0.7, False),
        (1.1, 0.7, -0.77, False),
        (1.5, 1.0, -1.3, True),  # above the upper bound, and it should grow no more
        (1.5, -1.0, 1.5, False),  # too likely and bad: the gradient stays
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.9, True),
    ],
)
def test_the_clip_bounds_the_ratio_only_where_it_would_go_on(
    ratio: float, advantage: float, expected: float, is_clipped: bool
) -> None:
    learner, behaviour = ratio_of(ratio)
    made = ppo_clip(0.1, 0.3, learner, behaviour, column(advantage))
    assert made.losses.item() == pytest.approx(expected)
    assert made.ratios.item() == pytest.approx(ratio)
    assert bool(made.metrics["clip_fraction"]) is is_clipped


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=8))
def test_a_clipped_token_has_no_gradient_and_a_free_one_has_ratio_times_advantage(
    rows: list[tuple[float, float, float]],
) -> None:
    learner, behaviour, advantages = (torch.tensor(part, dtype=torch.float64) for part in zip(*rows, strict=True))
    learner.requires_grad_()
    made = ppo_clip(0.2, 0.2, learner, behaviour, advantages)
    (gradient,) = torch.autograd.grad(made.losses.sum(), learner)
    expected = torch.where(made.metrics["clip_fraction"], torch.zeros_like(gradient), -made.ratios * advantages)
    torch.testing.assert_close(gradient, expected)


@given(numbers, numbers)
def test_at_equal_policies_the_gradient_is_that_of_reinforce(logprob: float, advantage: float) -> None:
    learner = column(logprob).requires_grad_()
    (gradient,) = torch.autograd.grad(ppo_clip(0.2, 0.2, learner, column(logprob), column(advantage)).losses.sum(), learner)
    assert gradient.item() == pytest.approx(-advantage)


@pytest.mark.parametrize("gap", [1000.0, -1000.0])
def test_a_log_ratio_out_of_all_bounds_stays_finite(gap: float) -> None:
    learner = column(gap).requires_grad_()
    made = ppo_clip(0.2, 0.2, learner, column(0.0), column(-1.0))
    (gradient,) = torch.autograd.grad(made.losses.sum(), learner)
    assert made.ratios.log().item() == pytest.approx(math.copysign(MAX_LOG_RATIO, gap))
    assert math.isfinite(gradient.item())


@given(st.lists(numbers, min_size=2, max_size=10), st.data())
def test_the_token_mean_does_not_depend_on_the_split(losses: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(losses)))
    whole = torch.tensor(losses, dtype=torch.float64)
    parts = token_mean(whole[:cut], len(losses)) + token_mean(whole[cut:], len(losses))
    torch.testing.assert_close(parts, whole.mean())


def test_log_probabilities_are_of_the_distribution_after_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]], dtype=torch.float64)
    logprobs, entropies = token_logprobs(logits, torch.tensor([2, 1]), temperature=2.0)
    probabilities = torch.softmax(logits / 2.0, dim=-1)
    torch.testing.assert_close(logprobs.exp(), torch.stack([probabilities[0, 2], probabilities[1, 1]]))
    torch.testing.assert_close(entropies, -(probabilities * probabilities.log()).sum(-1))


def test_bfloat16_logits_are_normalised_in_float32() -> None:
    logits = torch.randn(3, 50).bfloat16()
    logprobs, _ = token_logprobs(logits, torch.tensor([0, 1, 2]))
    assert logprobs.dtype == torch.float32


def make_sums(ratios: list[float], advantages: list[float]) -> LossSums:
    sums = LossSums()
    learner, behaviour = torch.tensor(ratios, dtype=torch.float64).log(), torch.zeros(len(ratios), dtype=torch.float64)
    given_advantages = torch.tensor(advantages, dtype=torch.float64)
    sums.add(ppo_clip(0.2, 0.2, learner, behaviour, given_advantages), torch.ones(len(ratios)), given_advantages)
    return sums


def test_metrics_over_ranks_are_those_of_all_tokens_together() -> None:
    whole = make_sums([0.5, 1.0, 2.0], [1.0, -1.0, 1.0]).metrics()
    parts = [make_sums([0.5], [1.0]), make_sums([1.0, 2.0], [-1.0, 1.0]), make_sums([], [])]
    told = [msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=LossSums) for part in parts]
    assert LossSums.merge(told).metrics() == pytest.approx(whole)
    assert whole["ratio_min"] == pytest.approx(0.5)
    assert whole["ratio_max"] == pytest.approx(2.0)
    assert whole["ratio_mean"] == pytest.approx(3.5 / 3)
    assert whole["clip_fraction"] == pytest.approx(1 / 3)
    assert whole["num_tokens"] == 3
    assert whole["effective_sample_fraction"] == pytest.approx(3.5**2 / (3 * 5.25))


def test_a_loss_may_not_name_a_metric_that_every_loss_has() -> None:
    one = column(1.0)
    sums = LossSums()
    sums.add(TokenLoss(one, one, {"entropy": one}), one, one)
    with pytest.raises(AssertionError, match="a loss names a metric that every loss has"):
        sums.metrics()


def test_without_a_token_there_are_no_metrics() -> None:
    assert LossSums().metrics() == {}
