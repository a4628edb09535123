"""The learner's process: the product's own, from the journal to checkpoints and lineages, with nothing in the place of the
model. A killed one goes back to its checkpoint under a new run id and trains again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from consumers.learner import rank
from consumers.learner.config import Config, Settings
from consumers.learner.facts import RunIdentity
from consumers.learner.publishing import RunPaths
from gagar.records import PolicyVersion
from gagar.training.deepspeed import StepResult
from gagar.training.ranks import Ranks
from tests.chaos.plan import Plan
from tests.chaos.tampering import HANG_S, Markers

VOCAB_SIZE = 1000


class NullTrainer:
    """Steps, saves and loads nothing."""

    markers: Markers

    def __init__(self, model: Any, optimization: Any, loss: Any, ranks: Ranks) -> None: ...

    def gather_state(self) -> dict[str, Any]:
        return {}

    def step(self, batches: Any, num_sampled: int, step: int) -> StepResult:
        if self.markers.take("hang", "learner"):
            time.sleep(HANG_S)
        return StepResult(is_applied=True, grad_norm=0.0, metrics={})

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True)

    def load(self, directory: Path) -> None: ...

    def close(self) -> None: ...


class NullPublisher:
    """Names versions that have no files, so that none is ever retired."""

    def __init__(self, paths: RunPaths, model: Any, identity: RunIdentity, keep: int) -> None:
        self._identity = identity

    def write(self, version: int, state: Any, *, is_last: bool, metrics: Mapping[str, float] | None = None) -> PolicyVersion:
        return PolicyVersion(
            run_id=self._identity.run_id,
            version=version,
            step=version,
            lineage=self._identity.lineage,
            location="",
            checksum="",
            is_last=is_last,
            created_at=time.time(),
        )

    def retired(self, newest: PolicyVersion) -> list[PolicyVersion]:
        return []

    def remove(self, retired: Sequence[PolicyVersion]) -> None: ...


def null_model(*_: object) -> Any:
    """Has a vocabulary."""
    return SimpleNamespace(get_input_embeddings=lambda: SimpleNamespace(num_embeddings=VOCAB_SIZE))


STAND_INS: dict[str, Callable[..., Any]] = {
    "Trainer": NullTrainer,
    "Publisher": NullPublisher,
    "load_model": null_model,
    "describe": lambda model: "null",
    "open_ranks": lambda timeout_s: Ranks(),
    "collate": lambda samples: samples,
    "_set_threads": lambda num_threads: None,
}
"""What takes the place of torch in `consumers.learner.rank`."""


def learn(plan: Plan, markers: Markers) -> None:
    """Until SIGTERM."""
    NullTrainer.markers = markers
    for name, stand_in in STAND_INS.items():
        assert hasattr(rank, name), name
        setattr(rank, name, stand_in)
    rank.run_rank(Settings(config=Config(checkpoint_every=plan.pace.checkpoint_every), run=plan.run))
