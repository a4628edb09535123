"""Behaviour-anchored PPO clip."""

from gagar.training.losses.protocol import TokenBatch, TokenLoss

MAX_LOG_RATIO = 20.0
"""Bound of |log r| before exp: unbounded ratios gave non-finite gradients elsewhere; no clip range reaches so far."""


class PpoClipLoss:
    """-min(r A, clip(r, 1 - low, 1 + high) A) with r = learner / behaviour (Schulman et al. 2017, eq. 7)."""

    needs_proximal_logprobs = False

    def __init__(self, clip_low: float, clip_high: float) -> None:
        self._low, self._high = 1 - clip_low, 1 + clip_high

    def __call__(self, batch: TokenBatch) -> TokenLoss:
        """Its metric `clip_fraction` is the share of tokens that give no gradient on account of the clip."""
        import torch

        log_ratios = (batch.learner_logprobs - batch.behaviour_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratios = log_ratios.exp()
        free, clipped = ratios * batch.advantages, ratios.clamp(self._low, self._high) * batch.advantages
        return TokenLoss(-torch.minimum(free, clipped), ratios.detach(), {"clip_fraction": (clipped < free).detach()})
