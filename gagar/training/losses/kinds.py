"""The kinds of losses, and their port in the run file. A new one is a LossTable and a place in the union."""

from gagar.config import Kind, require
from gagar.training.losses.protocol import Loss


class LossTable(Kind, frozen=True, kw_only=True):
    """`[learner.loss]`: what the learner minimises."""

    def make(self) -> Loss:
        """The loss with these options."""
        raise NotImplementedError


class PpoClip(LossTable, frozen=True, kw_only=True, tag="ppo_clip"):
    """PPO's clip, anchored at the policy that sampled."""

    clip_low: float = 0.2
    """The importance ratio counts down to 1 - clip_low ..."""
    clip_high: float = 0.2
    """... and up to 1 + clip_high."""

    def __post_init__(self) -> None:
        require(0 < self.clip_low < 1, "clip_low", "between 0 and 1", self.clip_low)
        require(self.clip_high > 0, "clip_high", "more than 0", self.clip_high)

    def make(self) -> Loss:
        from gagar.training.losses.ppo_clip import PpoClipLoss

        return PpoClipLoss(self.clip_low, self.clip_high)


LossKinds = PpoClip
