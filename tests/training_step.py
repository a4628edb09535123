"""One step of a Trainer over a fixed batch, in the tests' own process; by two ranks: `python -m tests.training_step JOBS`."""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from gagar.training.batch import Sample, collate
from gagar.training.deepspeed import Optimization, StepResult, Trainer, open_ranks
from gagar.training.losses.ppo_clip import PpoClipLoss
from gagar.training.model import load_model
from gagar.training.packing import balance, pack
from gagar.training.ranks import Ranks
from tests.learner import make_tokens

NUM_SAMPLES = 7


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and where the answer goes."""

    model: str
    out: str
    zero_stage: int = 0
    token_budget: int = 40
    num_samples: int = NUM_SAMPLES
    num_steps: int = 1


def make_samples(count: int) -> list[Sample]:
    """The fixed batch: different lengths, both signs, one at a ratio far outside the clip."""
    rng = np.random.default_rng(5)
    records = [make_tokens(rng, "g0", index, length=6 + 3 * index) for index in range(count)]
    return [Sample(record, float(rng.normal())) for record in records]


def make_optimization(zero_stage: Any = 0, **fields: Any) -> Optimization:
    defaults = {"learning_rate": 1e-2, "warmup_steps": 0, "betas": (0.9, 0.95), "weight_decay": 0.0, "gradient_clip": 1.0}
    return Optimization(zero_stage=zero_stage, dtype="float32", **{**defaults, **fields})


def step(trainer: Trainer, ranks: Ranks, samples: list[Sample], token_budget: int, number: int = 1) -> StepResult:
    """One optimizer step over `samples`, divided over the ranks."""
    lengths = [sample.tokens.token_ids.length for sample in samples]
    plan = pack(balance(lengths, ranks.world_size), lengths, token_budget)[ranks.rank]
    num_tokens = sum(int(sample.tokens.loss_mask.view().sum()) for sample in samples)
    return trainer.step([collate([samples[index] for index in batch]) for batch in plan], num_tokens, number)


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The whole gradient as each rank would apply it."""
    from deepspeed.utils import safe_get_full_grad  # noqa: TID251

    named = list(trainer.model.named_parameters())
    if trainer._optimization.zero_stage == 0:
        return {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}
    return {name: safe_get_full_grad(parameter).clone() for name, parameter in named}


def run(job: Job, ranks: Ranks) -> dict[str, Any]:
    """Steps, and what came out: gradients of the last one (before clipping) and weights."""
    trainer = Trainer(load_model(Path(job.model), "float32"), make_optimization(job.zero_stage), PpoClipLoss(0.2, 0.2), ranks)
    seen: dict[str, torch.Tensor] = {}
    apply = trainer._apply

    def spy() -> float:
        seen.update(gradients(trainer))
        return apply()

    trainer._apply = spy  # type: ignore[method-assign]
    samples = make_samples(job.num_samples)
    results = [step(trainer, ranks, samples, job.token_budget, number) for number in range(1, job.num_steps + 1)]
    weights = {name: tensor.clone() for name, tensor in trainer.gather_state().items()}
    trainer.close()
    return {"gradients": seen, "weights": weights, "metrics": results[-1].metrics, "grad_norm": results[-1].grad_norm}


def main() -> None:
    jobs = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[Job])
    torch.set_num_threads(1)
    ranks = open_ranks(60.0)
    for job in jobs:
        answer = run(job, ranks)
        if ranks.is_first:
            torch.save(answer, job.out)
    ranks.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
