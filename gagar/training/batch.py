"""Token records into padded tensors of one micro-batch. In: checked TrajectoryTokens and their advantages. Out: a
MicroBatch.

Rows are padded on the right, so under causal attention no real token sees padding and none needs an attention mask. Only
columns that predict some sampled token are asked of the model's head: the logits of prompts are never made.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gagar.errors import BadRecordError
from gagar.records import TrajectoryTokens, check_alignment

if TYPE_CHECKING:
    from torch import Tensor


class Sample(NamedTuple):
    """One trajectory to train on."""

    tokens: TrajectoryTokens
    advantage: float


class MicroBatch(NamedTuple):
    """N rows, T columns, C columns with logits, K sampled tokens."""

    input_ids: "Tensor"
    """i8 [N, T]."""
    columns: "Tensor"
    """i8 [C]: where logits are needed."""
    rows: "Tensor"
    """i8 [K]: row of the logit of each sampled token."""
    places: "Tensor"
    """i8 [K]: its place among `columns`."""
    targets: "Tensor"
    """i8 [K]."""
    behaviour_logprobs: "Tensor"
    """f4 [K]."""
    advantages: "Tensor"
    """f4 [K]."""


def check_trainable(tokens: TrajectoryTokens, vocab_size: int, length: int, num_sampled: int) -> None:
    """Raises BadRecordError unless the arrays are aligned, of the announced counts, and of this model's vocabulary."""
    check_alignment(tokens)
    ids, mask = tokens.token_ids.view(), tokens.loss_mask.view()
    what = f"trajectory-tokens {tokens.group_id}/{tokens.sample_index}"
    if (len(ids), int(mask.sum())) != (length, num_sampled):
        raise BadRecordError(f"{what}: expected {length} tokens, {num_sampled} sampled, got {len(ids)}, {int(mask.sum())}")
    if mask[0]:
        raise BadRecordError(f"{what}: expected a prompt before the first sampled token, got none")
    if ids.max() >= vocab_size:
        raise BadRecordError(f"{what}: expected token ids below {vocab_size}, got {ids.max()}")


def collate(samples: Sequence[Sample]) -> MicroBatch:
    """The padded micro-batch of `samples`; without any, one row of one token that trains nothing but joins the collectives."""
    import numpy as np
    import torch

    if not samples:
        nothing, none = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        return MicroBatch(
            torch.zeros((1, 1), dtype=torch.int64), torch.zeros(1, dtype=torch.int64), nothing, nothing, nothing, none, none
        )
    masks = [sample.tokens.loss_mask.view() for sample in samples]
    input_ids = np.zeros((len(samples), max(len(mask) for mask in masks)), dtype=np.int64)
    sampled = np.zeros(input_ids.shape, dtype=bool)
    for row, (sample, mask) in enumerate(zip(samples, masks, strict=True)):
        input_ids[row, : len(mask)] = sample.tokens.token_ids.view()
        sampled[row, : len(mask)] = mask
    rows, positions = np.nonzero(sampled)  # row by row, like the concatenations below
    columns, places = np.unique(positions - 1, return_inverse=True)
    logprobs = [sample.tokens.behaviour_logprobs.view()[mask == 1] for sample, mask in zip(samples, masks, strict=True)]
    counts = [int(mask.sum()) for mask in masks]
    advantages = np.repeat(np.array([sample.advantage for sample in samples], dtype=np.float32), counts)
    return MicroBatch(
        torch.from_numpy(input_ids),
        torch.from_numpy(columns),
        torch.from_numpy(rows),
        torch.from_numpy(places.reshape(-1)),
        torch.from_numpy(input_ids[rows, positions]),
        torch.from_numpy(np.concatenate(logprobs)),
        torch.from_numpy(advantages),
    )
