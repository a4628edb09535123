"""[learner] in the run file, and what a rank is told."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gagar.config import Count, Run, Seconds, Table, require
from gagar.training.losses.kinds import LossKinds, PpoClip

Beta = Annotated[float, Meta(ge=0, lt=1)]


class Config(Table, frozen=True, kw_only=True):
    """[learner] in the run file."""

    num_ranks: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Processes that share each step: started here on one machine, unless torchrun has started this process as one of them."""
    num_threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Threads of each rank's computations; 0: OMP_NUM_THREADS, or as many as there are cores. More than are idle cost dearly:
    threads that wait for each other spin, and a step on a busy machine takes ten times as long."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and computation; bfloat16 keeps float32 copies and needs zero_stage >= 1."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """What ZeRO divides among the ranks: nothing, optimizer state, gradients too, weights too."""
    learning_rate: Annotated[float, Meta(gt=0, le=1)] = 2e-4
    """Learning rate after the warm-up."""
    warmup_steps: Annotated[int, Meta(ge=0)] = 3
    """Steps of linear warm-up; after them the learning rate is constant."""
    betas: Annotated[tuple[Beta, Beta], Meta(description="two numbers from 0 up to below 1")] = (0.9, 0.95)
    """Betas of AdamW."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    """Weight decay of AdamW."""
    gradient_clip: Annotated[float, Meta(ge=0)] = 1.0
    """Bound of the global gradient norm; 0: none."""
    loss: LossKinds = PpoClip()
    """Loss that the learner minimises."""
    token_budget: Count = 4096
    """Tokens of a micro-batch, padding included; a longer trajectory has one to itself."""
    prefetch_bytes: Annotated[int, Meta(ge=0)] = 256 << 20
    """Bound of token arrays that a rank holds beyond those of the next step."""
    checkpoint_every: Count = 10
    """Steps between checkpoints; a restart does at most so many again."""
    keep_checkpoints: Count = 2
    """Newest checkpoints that are kept."""
    keep_policies: Annotated[int, Meta(ge=2)] = 4
    """Newest policy directories that are kept."""
    start_over: bool = False
    """Without a checkpoint, train from the initial policy even if the run has trained steps, which are then abandoned."""
    max_non_finite: Count = 5
    """Batches in a row without a finite loss and gradient after which the learner gives up."""
    collective_timeout_s: Seconds = 600.0
    """Seconds that ranks wait for each other at most."""

    def __post_init__(self) -> None:
        is_mixed = self.dtype == "float32" or self.zero_stage > 0
        require(is_mixed, "zero_stage", "1, 2 or 3 with dtype bfloat16", self.zero_stage)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told."""

    config: Config
    run: Run
