"""Where the learner's files are, and what it writes there: policies, checkpoints, evidence.

Under `<run.dir>/runs/<run.name>/`: `policies/<run_id>/<version>`, `checkpoints/<run_id>-<step>`,
`evidence/<run_id>-<number>.json`.
"""

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from consumers.learner.facts import RunIdentity, finite
from consumers.learner.plan import GroupLoad
from gagar.config import Run
from gagar.records import PolicyVersion
from gagar.training.checkpoint import old_policies, remove_policy
from gagar.training.model import save_policy

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

logger = logging.getLogger(__name__)


class RunPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Directories of a run; the learner makes them when it first writes."""

    root: Path
    policy: Path
    """The initial policy."""

    @classmethod
    def of(cls, run: Run) -> "RunPaths":
        return cls(root=run.directory, policy=run.resolve(run.policy.path))

    @property
    def policies(self) -> Path:
        return self.root / "policies"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def evidence(self) -> Path:
        return self.root / "evidence"


def new_run_id() -> str:
    """A name that no other start has: the second, and chance."""
    return f"r{int(time.time()):08x}{secrets.token_hex(4)}"


class Publisher:
    """Writes policy versions of one run as directories; the record is the caller's to commit."""

    def __init__(self, paths: RunPaths, model: "Module", identity: RunIdentity, keep: int) -> None:
        self._paths = paths
        self._model = model
        self._identity = identity
        self._keep = keep

    def write(
        self, version: int, state: dict[str, "Tensor"], *, is_last: bool, metrics: Mapping[str, float] | None = None
    ) -> PolicyVersion:
        """The directory of `version`, and the record that names it."""
        destination = self._paths.policies / self._identity.run_id / str(version)
        checksum = save_policy(self._model, state, self._paths.policy, destination)
        return PolicyVersion(
            run_id=self._identity.run_id,
            version=version,
            step=version,
            lineage=self._identity.lineage,
            location=str(destination),
            checksum=checksum,
            is_last=is_last,
            metrics=finite(metrics or {}),
            created_at=time.time(),
        )

    def retired(self, newest: PolicyVersion) -> list[PolicyVersion]:
        """The versions, of all runs, whose directories will not stay beside `newest`; their records end in its transaction."""
        return [
            PolicyVersion(run_id=path.parent.name, version=int(path.name), step=int(path.name), location=str(path), checksum="")
            for path in old_policies(self._paths.policies, Path(newest.location), self._keep)
        ]

    def remove(self, retired: Sequence[PolicyVersion]) -> None:
        """Removes their directories, once no record names them."""
        for version in retired:
            remove_policy(Path(version.location))
            logger.info("policy removed run=%s version=%d", version.run_id, version.version)


def keep_evidence(paths: RunPaths, name: str, groups: Sequence[GroupLoad], numbers: Mapping[str, float]) -> Path:
    """Writes down what a step without a finite loss or gradient was made of; numbers that are not finite as text."""
    paths.evidence.mkdir(parents=True, exist_ok=True)
    path = paths.evidence / f"{name}.json"
    facts = {"numbers": {key: str(value) for key, value in numbers.items()}, "groups": groups}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(facts)))
    return path
