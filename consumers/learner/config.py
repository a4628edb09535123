"""[learner] in the run file, and what a rank is told."""

from typing import Literal

import msgspec

from gagar.config import Run, Table, require, require_duration
from gagar.training.losses.kinds import LossKinds, PpoClip


class Config(Table, frozen=True, kw_only=True):
    """[learner] in the run file."""

    num_ranks: int = 1
    """Processes that share each step: started here on one machine, unless torchrun has started this process as one of them."""
    num_threads: int = 0
    """Threads of each rank's computations; 0: OMP_NUM_THREADS, or as many as there are cores. More than are idle cost dearly:
    threads that wait for each other spin, and a step on a busy machine takes ten times as long."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and computation; bfloat16 keeps float32 copies and needs zero_stage >= 1."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """What ZeRO divides among the ranks: nothing, optimizer state, gradients too, weights too."""
    learning_rate: float = 2e-4
    """After the warm-up."""
    warmup_steps: int = 3
    """Steps of linear warm-up; constant after it."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW."""
    weight_decay: float = 0.0
    """AdamW's."""
    gradient_clip: float = 1.0
    """Bound of the global gradient norm; 0: none."""
    loss: LossKinds = PpoClip()
    """`[learner.loss]`."""
    token_budget: int = 4096
    """Tokens of a micro-batch, padding included; a longer trajectory has one to itself."""
    prefetch_bytes: int = 256 << 20
    """Bound of token arrays that a rank holds beyond those of the next step."""
    checkpoint_every: int = 10
    """Steps between checkpoints; a restart does at most so many again."""
    keep_checkpoints: int = 2
    """Checkpoints that stay, the newest ones."""
    keep_policies: int = 4
    """Policy directories that stay."""
    max_non_finite: int = 5
    """Batches in a row without a finite loss and gradient after which the learner gives up."""
    collective_timeout_s: float = 600.0
    """The longest that ranks wait for each other."""

    def __post_init__(self) -> None:
        require(1 <= self.num_ranks <= 1024, "num_ranks", "1 to 1024", self.num_ranks)
        require(0 <= self.num_threads <= 1024, "num_threads", "0 to 1024", self.num_threads)
        is_mixed = self.dtype == "float32" or self.zero_stage > 0
        require(is_mixed, "zero_stage", "1, 2 or 3 with dtype bfloat16", self.zero_stage)
        require(0 < self.learning_rate <= 1, "learning_rate", "more than 0, at most 1", self.learning_rate)
        require(self.warmup_steps >= 0, "warmup_steps", "0 or more", self.warmup_steps)
        require(all(0 <= beta < 1 for beta in self.betas), "betas", "two numbers from 0 up to below 1", self.betas)
        require(self.weight_decay >= 0, "weight_decay", "0 or more", self.weight_decay)
        require(self.gradient_clip >= 0, "gradient_clip", "0 or more", self.gradient_clip)
        require(self.token_budget >= 1, "token_budget", "1 or more", self.token_budget)
        require(self.prefetch_bytes >= 0, "prefetch_bytes", "0 or more", self.prefetch_bytes)
        require(self.checkpoint_every >= 1, "checkpoint_every", "1 or more", self.checkpoint_every)
        require(self.keep_checkpoints >= 1, "keep_checkpoints", "1 or more", self.keep_checkpoints)
        require(self.keep_policies >= 2, "keep_policies", "2 or more", self.keep_policies)
        require(self.max_non_finite >= 1, "max_non_finite", "1 or more", self.max_non_finite)
        require_duration(self.collective_timeout_s, "collective_timeout_s")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told."""

    config: Config
    run: Run
