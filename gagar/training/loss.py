"""Policy losses over sampled tokens, and the sums from which a step's metrics are made.

In: per sampled token [K] the learner's and the behaviour policy's log-probabilities and the advantage. Out: per token [K] a
loss, and the importance ratio behind it. Aggregation is apart: `token_mean` divides the sum over a micro-batch by the number
of sampled tokens of the whole batch, over all ranks and micro-batches, so the gradient is the same for any split. What a token
mean keeps is a sum over tokens: a trajectory weighs by its length.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Bound of |log r| before exp: unbounded ratios gave non-finite gradients elsewhere; no clip range reaches so far."""


class TokenLoss(NamedTuple):
    """What a loss says of each sampled token; all [K]."""

    losses: "Tensor"
    """With gradient."""
    ratios: "Tensor"
    """pi / mu, without gradient."""
    is_clipped: "Tensor"
    """bool: the token gives no gradient on account of the clip."""


Loss = Callable[["Tensor", "Tensor", "Tensor"], TokenLoss]
"""(learner_logprobs, behaviour_logprobs, advantages), each [K], to a TokenLoss: the one form that every loss has."""


def token_logprobs(logits: "Tensor", targets: "Tensor", temperature: float = 1.0) -> tuple["Tensor", "Tensor"]:
    """Log-probabilities [K] of `targets` [K] under `logits` [K, V], and entropies [K] without gradient; in float32 at least."""
    import torch

    scaled = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    everything = torch.log_softmax(scaled, dim=-1)
    with torch.no_grad():
        entropies = -(everything.exp() * everything).sum(dim=-1)
    return everything.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropies


def ppo_clip(clip_low: float, clip_high: float) -> Loss:
    """Behaviour-anchored PPO clip (Schulman et al. 2017, eq. 7): -min(r A, clip(r, 1 - low, 1 + high) A), r = pi / mu."""

    def loss(learner_logprobs: "Tensor", behaviour_logprobs: "Tensor", advantages: "Tensor") -> TokenLoss:
        import torch

        log_ratios = (learner_logprobs - behaviour_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratios = log_ratios.exp()
        free, clipped = ratios * advantages, ratios.clamp(1 - clip_low, 1 + clip_high) * advantages
        return TokenLoss(-torch.minimum(free, clipped), ratios.detach(), (clipped < free).detach())

    return loss


def token_mean(losses: "Tensor", num_tokens: int) -> "Tensor":
    """The share of a micro-batch in the batch's token mean; `num_tokens` counts the sampled tokens of the whole batch."""
    return losses.sum() / num_tokens


SUMS = ("loss", "clipped", "ratio", "ratio_squared", "log_ratio_abs", "mismatch", "entropy", "advantage", "tokens")


class LossSums:
    """Sums over tokens that add up over micro-batches and ranks. Not promised: gradients; it keeps plain floats."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(SUMS, 0.0)
        self.ratio_min = math.inf
        self.ratio_max = -math.inf

    def add(self, token_loss: TokenLoss, entropies: "Tensor", advantages: "Tensor") -> None:
        """Counts one micro-batch in; all [K], K may be 0."""
        import torch

        ratios = token_loss.ratios.double()
        if not len(ratios):
            return
        log_ratios = ratios.log()
        columns = (
            token_loss.losses.detach().double(),
            token_loss.is_clipped.double(),
            ratios,
            ratios * ratios,
            log_ratios.abs(),
            ratios - 1 - log_ratios,
            entropies.double(),
            advantages.double(),
            torch.ones_like(ratios),
        )
        totals = torch.stack(columns).sum(dim=-1).tolist()
        for name, total in zip(SUMS, totals, strict=True):
            self.sums[name] += total
        self.ratio_min = min(self.ratio_min, float(ratios.min()))
        self.ratio_max = max(self.ratio_max, float(ratios.max()))

    def parts(self) -> list[float]:
        """Everything as numbers, for another rank's `of`."""
        return [*self.sums.values(), self.ratio_min, self.ratio_max]

    @classmethod
    def of(cls, parts: list[float]) -> "LossSums":
        """What `parts` answered."""
        made = cls()
        *totals, made.ratio_min, made.ratio_max = parts
        made.sums = dict(zip(SUMS, totals, strict=True))
        return made

    @staticmethod
    def merge(others: "list[LossSums]") -> "LossSums":
        """The sums over several ranks."""
        merged = LossSums()
        for other in others:
            for name in SUMS:
                merged.sums[name] += other.sums[name]
            merged.ratio_min = min(merged.ratio_min, other.ratio_min)
            merged.ratio_max = max(merged.ratio_max, other.ratio_max)
        return merged

    def metrics(self) -> dict[str, float]:
        """Means over tokens, for `PolicyVersion.metrics`; all 0 when there were no tokens."""
        count = self.sums["tokens"]
        if not count:
            return {}
        mean = {name: total / count for name, total in self.sums.items()}
        squares = self.sums["ratio_squared"]
        return {
            "loss": mean["loss"],
            "clip_fraction": mean["clipped"],
            "ratio_mean": mean["ratio"],
            "ratio_min": self.ratio_min,
            "ratio_max": self.ratio_max,
            "log_ratio_abs_mean": mean["log_ratio_abs"],
            "mismatch_kl": mean["mismatch"],
            "effective_sample_fraction": self.sums["ratio"] ** 2 / (count * squares) if squares else 0.0,
            "entropy": mean["entropy"],
            "advantage_token_mean": mean["advantage"],
            "num_tokens": count,
        }
