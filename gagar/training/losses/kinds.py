"""The kinds of losses, and their port in the run file. A new one is a LossTable and a place in the union."""

from typing import Annotated

from msgspec import Meta

from gagar.config import Kind
from gagar.training.losses.protocol import Loss


class LossTable(Kind, frozen=True, kw_only=True):
    """`[learner.loss]`: what the learner minimises."""

    def make(self) -> Loss:
        """The loss with these options."""
        raise NotImplementedError


class PpoClip(LossTable, frozen=True, kw_only=True, tag="ppo_clip"):
    """PPO's clip, anchored at the policy that sampled."""

    clip_low: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """The importance ratio counts down to 1 - clip_low."""
    clip_high: Annotated[float, Meta(gt=0)] = 0.2
    """The importance ratio counts up to 1 + clip_high."""

    def make(self) -> Loss:
        from gagar.training.losses.ppo_clip import PpoClipLoss

        return PpoClipLoss(self.clip_low, self.clip_high)


LossKinds = PpoClip
