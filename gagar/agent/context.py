"""The token context of an attempt: ids exactly as given to the engine and as sampled, never re-tokenised."""

from gagar.arrays import Tensor
from gagar.engine.protocol import Completion
from gagar.records import TrajectoryTokens


class TokenContext:
    """Grows by given ids (prompt, observations) and by sampled ones; all lists stay aligned, [T]."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.loss_mask = bytearray()
        self.logprobs: list[float] = []
        self.policy_versions: list[int] = []

    def give(self, token_ids: list[int]) -> None:
        """Appends ids that no policy sampled."""
        self.token_ids += token_ids
        self.loss_mask += bytes(len(token_ids))
        self.logprobs += [0.0] * len(token_ids)
        self.policy_versions += [-1] * len(token_ids)

    def sampled(self, completion: Completion) -> None:
        """Appends what the engine sampled after the ids so far."""
        self.token_ids += completion.token_ids
        self.loss_mask += b"\1" * len(completion.token_ids)
        self.logprobs += completion.logprobs
        self.policy_versions += completion.policy_versions

    @property
    def num_sampled(self) -> int:
        return self.loss_mask.count(1)

    @property
    def version_range(self) -> tuple[int, int]:
        """Oldest and newest version that sampled a token; (-1, -1) if none did."""
        versions = [version for version in self.policy_versions if version >= 0]
        return (min(versions), max(versions)) if versions else (-1, -1)

    def tokens(self, group_id: str, sample_index: int) -> TrajectoryTokens:
        """The record, its arrays made once."""
        import numpy as np

        return TrajectoryTokens(
            group_id=group_id,
            sample_index=sample_index,
            token_ids=Tensor.of(np.array(self.token_ids, "<i4")),
            loss_mask=Tensor.of(np.frombuffer(self.loss_mask, "u1")),
            behaviour_logprobs=Tensor.of(np.array(self.logprobs, "<f4")),
            policy_versions=Tensor.of(np.array(self.policy_versions, "<i4")),
        )
