"""What a loss is: a pure function over the sampled tokens of a micro-batch.

In: a TokenBatch. Out: a TokenLoss. Aggregation is apart: `token_mean` divides the sum over a micro-batch by the number of
sampled tokens of the whole batch, over all ranks and micro-batches, so the gradient is the same for any split. What a token
mean keeps is a sum over tokens: a trajectory weighs by its length.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class TokenBatch(NamedTuple):
    """The K sampled tokens of a micro-batch; all [K]."""

    learner_logprobs: "Tensor"
    """Under the weights that are trained, with gradient."""
    behaviour_logprobs: "Tensor"
    """Under the policy that sampled the token."""
    advantages: "Tensor"
    rows: "Tensor"
    """i8: the trajectory of the token, by its number in the micro-batch."""
    proximal_logprobs: "Tensor | None" = None
    """Under the weights at the start of the step, without gradient; there only if the loss asks for it."""


class TokenLoss(NamedTuple):
    """What a loss says of each sampled token; all [K]."""

    losses: "Tensor"
    """With gradient."""
    ratios: "Tensor"
    """Importance ratio of learner to behaviour, without gradient."""
    metrics: Mapping[str, "Tensor"]
    """Columns of the loss's own, without gradient; their means over tokens become metrics of the step by these names."""


class Loss(Protocol):
    """A kind of loss, with its options."""

    @property
    def needs_proximal_logprobs(self) -> bool:
        """Whether `TokenBatch.proximal_logprobs` has to be there."""

    def __call__(self, batch: TokenBatch) -> TokenLoss: ...


def token_logprobs(logits: "Tensor", targets: "Tensor", temperature: float = 1.0) -> tuple["Tensor", "Tensor"]:
    """Log-probabilities [K] of `targets` [K] under `logits` [K, V], and entropies [K] without gradient; in float32 at least."""
    import torch

    scaled = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    everything = torch.log_softmax(scaled, dim=-1)
    with torch.no_grad():
        entropies = -(everything.exp() * everything).sum(dim=-1)
    return everything.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropies


def token_mean(losses: "Tensor", num_tokens: int) -> "Tensor":
    """The share of a micro-batch in the batch's token mean; `num_tokens` counts the sampled tokens of the whole batch."""
    return losses.sum() / num_tokens
