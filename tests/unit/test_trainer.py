"""Real DeepSpeed on a CPU, one rank and two, against a float64 reference that knows no padding, batch or rank."""

import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from gagar.training.batch import Sample, collate
from gagar.training.deepspeed import Trainer, open_ranks
from gagar.training.losses.ppo_clip import PpoClipLoss
from gagar.training.losses.protocol import TokenBatch, TokenLoss
from gagar.training.model import load_model
from gagar.training.torchrun import launch
from tests.learner import make_model_directory
from tests.training_step import Job, make_optimization, make_samples, run, step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_directory(tmp_path_factory.mktemp("model") / "policy")


def reference(path: Path, samples: list[Sample]) -> dict[str, torch.Tensor]:
    """Gradient of the token mean of the clipped loss, in float64, one whole trajectory at a time."""
    policy: Any = load_model(path, "float32").double()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for sample in samples:
        ids = torch.tensor(sample.tokens.token_ids.view().astype(np.int64))
        logprobs = torch.log_softmax(policy(input_ids=ids[None]).logits[0], dim=-1)
        behaviour = sample.tokens.behaviour_logprobs.view()
        for place in np.flatnonzero(sample.tokens.loss_mask.view()):
            ratio = torch.exp(logprobs[place - 1, ids[place]] - float(behaviour[place]))
            total = total - torch.minimum(ratio * sample.advantage, ratio.clamp(0.8, 1.2) * sample.advantage)
            count += 1
    torch.autograd.backward(total / count)
    return {name: parameter.grad for name, parameter in policy.named_parameters()}


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 2e-6) -> None:
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        gap = (got[name].double() - tensor.double()).abs() - 1e-4 * tensor.double().abs()
        assert gap.max() <= tolerance, f"{name}: expected a difference of {tolerance} at most, got {gap.max()} beyond it"


@pytest.mark.parametrize("token_budget", [1, 40, 10_000])
def test_the_gradient_is_that_of_the_reference_for_any_micro_batches(model: Path, token_budget: int) -> None:
    made = run(Job(model=str(model), out="", token_budget=token_budget), open_ranks(60.0))
    expected = reference(model, make_samples(7))
    assert_same(made["gradients"], expected)
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in expected.values()))
    assert made["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert made["metrics"]["clip_fraction"] > 0


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_every_zero_stage_makes_the_same_steps(model: Path, zero_stage: int) -> None:
    ranks = open_ranks(60.0)
    plain = run(Job(model=str(model), out="", num_steps=2), ranks)
    divided = run(Job(model=str(model), out="", num_steps=2, zero_stage=zero_stage), ranks)
    assert_same(divided["gradients"], plain["gradients"])
    assert divided["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-4)
    assert_same(divided["weights"], plain["weights"], tolerance=1e-4)


TWO_RANK_JOBS = [(0, 7), (2, 7), (3, 1)]
"""ZeRO stage and number of trajectories; with one, a rank has nothing to do but join."""


@pytest.fixture(scope="module")
def by_two_ranks(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, Any]]:
    """What two real processes made of each job; one launch, since most of its time goes into imports."""
    root = tmp_path_factory.mktemp("answers")
    jobs = [Job(model=str(model), out=str(root / f"{z}-{n}.pt"), zero_stage=z, num_samples=n) for z, n in TWO_RANK_JOBS]
    (root / "jobs").write_bytes(msgspec.json.encode(jobs))
    assert launch([sys.executable, "-W", "ignore", "-m", "tests.training_step", str(root / "jobs")], 2) == 0
    return {key: torch.load(job.out) for key, job in zip(TWO_RANK_JOBS, jobs, strict=True)}


@pytest.mark.parametrize(("zero_stage", "num_samples"), TWO_RANK_JOBS)
def test_two_ranks_make_the_same_gradient_and_update_as_one(
    model: Path, by_two_ranks: dict[tuple[int, int], dict[str, Any]], zero_stage: int, num_samples: int
) -> None:
    two = by_two_ranks[zero_stage, num_samples]
    one = run(Job(model=str(model), out="", num_samples=num_samples), open_ranks(60.0))
    assert_same(two["gradients"], reference(model, make_samples(num_samples)))
    assert_same(two["gradients"], one["gradients"])
    assert_same(two["weights"], one["weights"], tolerance=1e-4)
    assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_a_loss_that_is_no_number_leaves_weights_and_optimizer_alone(model: Path, zero_stage: int) -> None:
    ranks = open_ranks(60.0)
    states = []
    for is_poisoned in (False, True):
        trainer = Trainer(load_model(model, "float32"), make_optimization(zero_stage), PpoClipLoss(0.2, 0.2), ranks)
        if is_poisoned:
            bad = [Sample(sample.tokens, math.inf) for sample in make_samples(2)]
            before = {name: tensor.clone() for name, tensor in trainer.gather_state().items()}
            result = step(trainer, ranks, bad, 40)
            assert not result.is_applied
            assert not math.isfinite(result.grad_norm)
            assert_same(trainer.gather_state(), before, tolerance=0)
        assert step(trainer, ranks, make_samples(7), 40).is_applied
        states.append({name: tensor.clone() for name, tensor in trainer.gather_state().items()})
        trainer.close()
    assert_same(states[1], states[0], tolerance=0)


@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_a_checkpoint_restores_weights_and_optimizer(model: Path, tmp_path: Path, zero_stage: int) -> None:
    ranks, samples = open_ranks(60.0), make_samples(7)

    def make() -> Trainer:
        return Trainer(load_model(model, "float32"), make_optimization(zero_stage), PpoClipLoss(0.2, 0.2), ranks)

    first = make()
    step(first, ranks, samples, 40, 1)
    first.save(tmp_path / "c")
    step(first, ranks, samples, 40, 2)
    expected = {name: tensor.clone() for name, tensor in first.gather_state().items()}
    first.close()
    second = make()
    second.load(tmp_path / "c")
    step(second, ranks, samples, 40, 2)
    assert_same(second.gather_state(), expected, tolerance=1e-7)
    second.close()


class RowLoss:
    """Keeps what it is shown; its metric is the length of each token's trajectory."""

    needs_proximal_logprobs = True

    def __init__(self) -> None:
        self.shown: list[TokenBatch] = []

    def __call__(self, batch: TokenBatch) -> TokenLoss:
        self.shown.append(batch)
        lengths = torch.bincount(batch.rows)[batch.rows]
        return TokenLoss(-batch.learner_logprobs, torch.ones(len(batch.rows)), {"row_length": lengths})


def test_a_loss_is_shown_rows_and_proximal_log_probabilities_and_names_its_own_metrics(model: Path) -> None:
    ranks, samples, loss = open_ranks(60.0), make_samples(3), RowLoss()
    trainer = Trainer(load_model(model, "float32"), make_optimization(), loss, ranks)
    result = step(trainer, ranks, samples, 10_000)
    trainer.close()
    (batch,) = loss.shown
    assert batch.proximal_logprobs is not None
    assert torch.equal(batch.proximal_logprobs, batch.learner_logprobs)
    assert not batch.proximal_logprobs.requires_grad
    lengths = sorted(int(sample.tokens.loss_mask.view().sum()) for sample in samples)
    assert sorted(torch.bincount(batch.rows).tolist()) == lengths
    assert result.metrics["row_length"] == pytest.approx(sum(length**2 for length in lengths) / sum(lengths))
    assert "clip_fraction" not in result.metrics


def test_an_empty_micro_batch_trains_nothing(model: Path) -> None:
    ranks = open_ranks(60.0)
    trainer = Trainer(load_model(model, "float32"), make_optimization(), PpoClipLoss(0.2, 0.2), ranks)
    result = trainer.step([collate([])], 10, 1)
    assert result.grad_norm == 0
    trainer.close()


def test_the_learning_rate_warms_up_and_then_stays() -> None:
    optimization = make_optimization(learning_rate=1.0, warmup_steps=4)
    assert [optimization.rate_at(step) for step in (1, 2, 4, 5, 100)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert make_optimization(learning_rate=1.0, warmup_steps=0).rate_at(1) == 1.0
