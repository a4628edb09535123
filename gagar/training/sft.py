"""Supervised fine-tuning of a small causal language model on one process: prompts and answers in, a trained model out.

Only answer tokens count. Not for large models: the pipeline's learner is DeepSpeed, this makes the policy that it starts from.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gagar.config import require

if TYPE_CHECKING:
    import torch

IGNORED_LABEL = -100


class SftConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to train."""

    num_steps: int = 1000
    batch_size: int = 32
    learning_rate: float = 3e-3
    """At its highest; falls to 0 by a cosine."""
    num_warmup_steps: int = 40
    max_grad_norm: float = 1.0
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        require(self.num_steps >= 1, "sft.num_steps", "1 or more", self.num_steps)
        require(self.batch_size >= 1, "sft.batch_size", "1 or more", self.batch_size)
        require(self.learning_rate > 0, "sft.learning_rate", "more than 0", self.learning_rate)


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of one prompt and its answer, the end token included."""

    prompt_ids: Sequence[int]
    answer_ids: Sequence[int]


class SftProgress(msgspec.Struct, frozen=True, kw_only=True):
    """State after a step."""

    step: int
    loss: float
    """Mean over the answer tokens of the batch, in nats."""
    num_tokens: int
    """Answer tokens so far."""


def learning_rate_at(step: int, config: SftConfig) -> float:
    """Linear warm-up, then a cosine down to 0 at `num_steps`; `step` counts from 0."""
    if step < config.num_warmup_steps:
        return config.learning_rate * (step + 1) / config.num_warmup_steps
    done = (step - config.num_warmup_steps) / max(1, config.num_steps - config.num_warmup_steps)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


def collate(examples: Sequence[Example], pad_id: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Ids and labels [num examples, longest], padded on the right; labels are ignored on prompts and padding."""
    import torch

    longest = max(len(example.prompt_ids) + len(example.answer_ids) for example in examples)
    ids = torch.full((len(examples), longest), pad_id, dtype=torch.long)
    labels = torch.full((len(examples), longest), IGNORED_LABEL, dtype=torch.long)
    for row, example in enumerate(examples):
        start, end = len(example.prompt_ids), len(example.prompt_ids) + len(example.answer_ids)
        ids[row, :end] = torch.tensor([*example.prompt_ids, *example.answer_ids])
        labels[row, start:end] = ids[row, start:end]
    return ids, labels


def _answer_loss(model: Any, ids: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
    """Mean cross-entropy of the answer tokens. Padding lies on the right, where causal attention never looks."""
    import torch.nn.functional as F

    is_answer = labels[:, 1:] != IGNORED_LABEL
    hidden = model.model(input_ids=ids[:, :-1]).last_hidden_state[is_answer]
    return F.cross_entropy(model.lm_head(hidden), labels[:, 1:][is_answer])


def train(
    model: Any,
    examples: Iterator[Example],
    config: SftConfig,
    pad_id: int,
    report: Callable[[SftProgress], None] = lambda progress: None,
) -> SftProgress:
    """Trains in place on `num_steps` batches and returns the last state; `report` hears of each step."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=config.weight_decay)
    model.train()
    progress = SftProgress(step=0, loss=math.nan, num_tokens=0)
    for step in range(config.num_steps):
        ids, labels = collate([next(examples) for _ in range(config.batch_size)], pad_id)
        loss = _answer_loss(model, ids, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, config)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        num_tokens = progress.num_tokens + int((labels != IGNORED_LABEL).sum())
        progress = SftProgress(step=step + 1, loss=loss.item(), num_tokens=num_tokens)
        report(progress)
    model.eval()
    return progress
