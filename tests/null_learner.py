"""The learner without a model: its own rounds, coordinator, checkpoints and journal, around a trainer that learns nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from consumers.learner.client import JournalClient
from consumers.learner.config import Settings
from consumers.learner.plan import Directive, GroupLoad, LoadReport
from consumers.learner.publishing import RunPaths
from consumers.learner.rank import Rank, Stop, _coordinator
from gagar.policies.model_directory import WEIGHTS
from gagar.records import GroupAdvantages, LogRef
from gagar.training.checkpoint import CheckpointState, read_latest
from gagar.training.deepspeed import StepResult
from gagar.training.ranks import Ranks
from tests.learner import make_advantages, make_member, make_tokens


class NullModel:
    """Weights that are a file."""

    def save_pretrained(self, directory: Path, **options: Any) -> None:
        (directory / WEIGHTS).write_bytes(b"weights")


class NullTrainer:
    """Calls `pause` around what a checkpoint writes."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause

    def gather_state(self) -> dict[str, Any]:
        return {}

    def save(self, directory: Path) -> None:
        self._pause()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "engine").write_bytes(b"state")
        self._pause()


class NullLoader:
    """Has read every group at once."""

    def __init__(self) -> None:
        self._loaded: list[str] = []

    def start(self, groups: Sequence[GroupLoad]) -> None:
        self._loaded += [group.group_id for group in groups]

    def report(self) -> LoadReport:
        loaded, self._loaded = self._loaded, []
        return LoadReport(loaded=loaded)

    def forget(self, group_ids: Sequence[str]) -> None: ...

    def wait(self, timeout_s: float) -> None: ...


class NullRank(Rank):
    """Every step is applied."""

    def _step(self, directive: Directive) -> StepResult:
        return StepResult(is_applied=True, grad_norm=1.0, metrics={})


def learn(settings: Settings, client: JournalClient, stop: Stop, pause: Callable[[], None] = lambda: None) -> None:
    """One life, from the newest checkpoint until `stop`."""
    places = RunPaths.of(settings.run)
    places.policy.mkdir(parents=True, exist_ok=True)
    found = read_latest(places.checkpoints)
    base = found[1] if found else CheckpointState(run_id="", step=0)
    client.connect()
    coordinator = _coordinator(settings, client, base, places, NullModel(), stop)
    trainer: Any = NullTrainer(pause)
    loader: Any = NullLoader()
    NullRank(settings.config, Ranks(), trainer, loader, places, coordinator).run()
    client.close()


def make_group(number: int, version: int | None = None) -> GroupAdvantages:
    """Group `g<number>`, whose tokens lie nowhere; groups are trained in the order of their versions."""
    import numpy as np

    record = make_tokens(np.random.default_rng(number), f"g{number}")
    ref = LogRef(topic="trajectory-tokens", partition=0, offset=number)
    return make_advantages(f"g{number}", [make_member(0, ref, record, 0.5, number if version is None else version)])
