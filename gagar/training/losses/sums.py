"""The sums over sampled tokens from which a step's metrics are made: those that every loss has, and each loss's own."""

import math
from typing import TYPE_CHECKING

import msgspec

from gagar.training.losses.protocol import TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

GENERAL = ("loss", "ratio", "ratio_squared", "log_ratio_abs", "mismatch", "entropy", "advantage", "tokens")


class LossSums(msgspec.Struct, kw_only=True):
    """Sums that add up over micro-batches and ranks. Not promised: gradients; it keeps plain floats."""

    general: dict[str, float] = msgspec.field(default_factory=lambda: dict.fromkeys(GENERAL, 0.0))
    own: dict[str, float] = {}
    """Of the loss's metrics, by name; none before the first token."""
    ratio_min: float = math.inf
    ratio_max: float = -math.inf

    def add(self, token_loss: TokenLoss, entropies: "Tensor", advantages: "Tensor") -> None:
        """Counts one micro-batch in; all [K], K may be 0."""
        import torch

        ratios = token_loss.ratios.double()
        if not len(ratios):
            return
        log_ratios = ratios.log()
        columns = (
            token_loss.losses.detach(),
            ratios,
            ratios * ratios,
            log_ratios.abs(),
            ratios - 1 - log_ratios,
            entropies,
            advantages,
            torch.ones_like(ratios),
            *token_loss.metrics.values(),
        )
        totals = torch.stack([column.double() for column in columns]).sum(dim=-1).tolist()
        _add(self.general, dict(zip(GENERAL, totals, strict=False)))
        _add(self.own, dict(zip(token_loss.metrics, totals[len(GENERAL) :], strict=True)))
        self.ratio_min = min(self.ratio_min, float(ratios.min()))
        self.ratio_max = max(self.ratio_max, float(ratios.max()))

    @staticmethod
    def merge(others: "list[LossSums]") -> "LossSums":
        """The sums over several ranks."""
        merged = LossSums()
        for other in others:
            _add(merged.general, other.general)
            _add(merged.own, other.own)
            merged.ratio_min = min(merged.ratio_min, other.ratio_min)
            merged.ratio_max = max(merged.ratio_max, other.ratio_max)
        return merged

    def metrics(self) -> dict[str, float]:
        """Means over tokens, for `PolicyVersion.metrics`; none when there were no tokens."""
        count = self.general["tokens"]
        if not count:
            return {}
        mean = {name: total / count for name, total in self.general.items()}
        squares = self.general["ratio_squared"]
        general = {
            "loss": mean["loss"],
            "ratio_mean": mean["ratio"],
            "ratio_min": self.ratio_min,
            "ratio_max": self.ratio_max,
            "log_ratio_abs_mean": mean["log_ratio_abs"],
            "mismatch_kl": mean["mismatch"],
            "effective_sample_fraction": self.general["ratio"] ** 2 / (count * squares) if squares else 0.0,
            "entropy": mean["entropy"],
            "advantage_token_mean": mean["advantage"],
            "num_tokens": count,
        }
        assert not general.keys() & self.own.keys(), f"a loss names a metric that every loss has: {sorted(self.own)}"
        return {**general, **{name: total / count for name, total in self.own.items()}}


def _add(sums: dict[str, float], more: dict[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value
