"""The only door to DeepSpeed: one optimizer step over micro-batches, checkpoints of the engine's state, the weights
gathered.

In: micro-batches of this rank, equally many on each rank. Out: a StepResult, equal on all ranks. On a CPU no operator is
compiled (the shared-memory collectives are switched off): a machine without a compiler trains.
"""

import logging
import math
import os
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gagar.training.batch import MicroBatch
from gagar.training.losses.protocol import Loss, TokenBatch, token_logprobs, token_mean
from gagar.training.losses.sums import LossSums
from gagar.training.ranks import Ranks

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

ZeroStage = Literal[0, 1, 2, 3]
MAX_BUCKET = 50_000_000
"""Elements of a ZeRO bucket; DeepSpeed's default would allocate 2 GB for any model."""


class Optimization(msgspec.Struct, frozen=True, kw_only=True):
    """How to step: AdamW, linear warm-up, then a constant learning rate."""

    learning_rate: float
    warmup_steps: int
    betas: tuple[float, float]
    weight_decay: float
    gradient_clip: float
    """Bound of the global gradient norm; 0: none."""
    zero_stage: ZeroStage
    dtype: Literal["float32", "bfloat16"]
    temperature: float = 1.0
    """Of the sampling, so that the learner's probabilities are of the same distribution."""

    def rate_at(self, step: int) -> float:
        """Learning rate of step `step`, counted from 1."""
        return self.learning_rate * min(1.0, step / max(1, self.warmup_steps))


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a step went; equal on all ranks."""

    is_applied: bool
    """False: loss or gradient were not finite, and the weights are what they were."""
    grad_norm: float
    """Before clipping."""
    metrics: dict[str, float]


class Trainer:
    """A model under DeepSpeed. All ranks construct it and make the same calls in the same order."""

    def __init__(self, model: "Module", optimization: Optimization, loss: Loss, ranks: Ranks) -> None:
        self.model = model
        self._optimization = optimization
        self._loss = loss
        self._ranks = ranks
        self._engine = _start_engine(model, optimization)

    def step(self, batches: Sequence[MicroBatch], num_tokens: int, step: int) -> StepResult:
        """Optimizer step number `step` (from 1) over a batch of `num_tokens` sampled tokens on all ranks together."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self._optimization.rate_at(step)
        sums = LossSums()
        for number, batch in enumerate(batches, start=1):
            self._engine.set_gradient_accumulation_boundary(number == len(batches))
            # DeepSpeed takes the mean over ranks; ours is a sum of shares.
            self._engine.backward(self._forward(batch, num_tokens, sums) * self._ranks.world_size)
        sums = LossSums.merge(self._ranks.gather(sums, LossSums))
        grad_norm = self._apply()
        metrics = {**sums.metrics(), "lr": self._optimization.rate_at(step), "grad_norm": grad_norm}
        return StepResult(is_applied=math.isfinite(grad_norm), grad_norm=grad_norm, metrics=metrics)

    def _forward(self, batch: MicroBatch, num_tokens: int, sums: LossSums) -> "Tensor":
        device = self._engine.device
        batch = MicroBatch(*(tensor.to(device) for tensor in batch))
        logits: Tensor = self._engine(input_ids=batch.input_ids, logits_to_keep=batch.columns, use_cache=False).logits
        if not len(batch.targets):
            return logits.sum() * 0.0
        sampled = logits[batch.rows, batch.places]
        logprobs, entropies = token_logprobs(sampled, batch.targets, self._optimization.temperature)
        # One optimizer step for each batch: the weights at its start are those that are trained now.
        proximal = logprobs.detach() if self._loss.needs_proximal_logprobs else None
        token_loss = self._loss(TokenBatch(logprobs, batch.behaviour_logprobs, batch.advantages, batch.rows, proximal))
        sums.add(token_loss, entropies, batch.advantages)
        share = token_mean(token_loss.losses, num_tokens)
        # A loss that is no number must make a gradient that is none, on every path back; then the update is skipped.
        return share if math.isfinite(share.item()) else logits.sum() * math.nan

    def _apply(self) -> float:
        """The update, unless the gradient is not finite; answers its norm."""
        if self._optimization.zero_stage == 0:
            return self._apply_replicated()
        self._engine.step()  # ZeRO skips an update with a norm that is not finite by itself
        return float(self._engine.get_global_grad_norm()) if self._engine.was_step_applied() else math.inf

    def _apply_replicated(self) -> float:
        """Without ZeRO every rank holds the whole, reduced gradient; clipped here, since DeepSpeed would not tell its norm."""
        from torch.nn.utils import clip_grad_norm_

        bound = self._optimization.gradient_clip or math.inf
        norm = float(clip_grad_norm_(self.model.parameters(), bound))
        if math.isfinite(norm):
            self._engine.step()
        else:
            self.model.zero_grad()
        return norm

    def gather_state(self) -> dict[str, "Tensor"]:
        """The whole state dict on rank 0, on the CPU; empty elsewhere. A collective call."""
        if self._optimization.zero_stage < 3:
            return dict(self.model.state_dict()) if self._ranks.is_first else {}
        import deepspeed

        state: dict[str, Tensor] = {}
        for name, parameter in self.model.state_dict(keep_vars=True).items():
            with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
                if self._ranks.is_first:
                    state[name] = parameter.detach().cpu().clone()
        return state

    def save(self, directory: Path) -> None:
        """Engine state (weights, optimizer) below `directory`. A collective call; not durable by itself."""
        self._engine.save_checkpoint(str(directory), tag="engine", save_latest=False)

    def load(self, directory: Path) -> None:
        """What `save` wrote, by as many ranks and with the same ZeRO stage (with stage 0: by any number of ranks)."""
        self._engine.load_checkpoint(str(directory), tag="engine")

    def close(self) -> None:
        """Lets go of the engine's hooks and buffers; the process group stays."""
        self._engine.destroy()


def open_ranks(timeout_s: float) -> Ranks:
    """Joins the ranks that the environment names (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); without it, one rank alone.

    Once in a process: DeepSpeed keeps the groups that it made.
    """
    import torch
    import torch.distributed as dist

    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "gloo":
        os.environ["DS_ACCELERATOR"] = "cpu"
    else:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store = dist.HashStore() if world_size == 1 else None  # type: ignore[attr-defined]
    if not dist.is_initialized():
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), store=store, rank=rank, world_size=world_size)
    ranks = Ranks(rank, world_size, timeout_s)
    ranks.open()
    return ranks


def _start_engine(model: "Module", optimization: Optimization) -> Any:
    """DeepSpeed's engine around `model`; the process group must exist."""
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        import torch

        if os.environ.get("DS_ACCELERATOR") == "cpu":
            vars(deepspeed.ops)["__compatible_ops__"] = {}
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=optimization.learning_rate, betas=optimization.betas, weight_decay=optimization.weight_decay
        )
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=_engine_config(model, optimization))
    return engine


def _engine_config(model: "Module", optimization: Optimization) -> dict[str, Any]:
    bucket = min(MAX_BUCKET, sum(parameter.numel() for parameter in model.parameters()))
    clip = optimization.gradient_clip if optimization.zero_stage else 0.0
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": clip,
        "steps_per_print": None,
        "bf16": {"enabled": optimization.dtype == "bfloat16"},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": optimization.zero_stage,
            "overlap_comm": False,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
        },
    }
