"""Checkpoints of a learner: a directory each, complete before the pointer `latest` names it.

A checkpoint holds the engine's state (written by DeepSpeed) and `state.json`, a CheckpointState: what the learner had done by
the commit of that step, offsets included. Broker-committed offsets serve only for lag.
"""

import os
import shutil
from pathlib import Path

import msgspec

from gagar.errors import ConfigError
from gagar.records import LineageEntry
from gagar.training.model import flush_path, flush_tree

STATE = "state.json"
LATEST = "latest"


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """What is restored together with the engine."""

    run_id: str
    """The learner's run that wrote it."""
    step: int
    """Optimizer steps done; the policy version."""
    lineage: list[LineageEntry] = []
    """Earlier runs that `run_id` continued, oldest first."""
    positions: dict[int, int] = {}
    """Partition -> low watermark: the first offset that is not finished."""
    finished: dict[int, list[int]] = {}
    """Partition -> offsets from the low watermark on that are finished."""
    input_id: str = ""
    """Id of the topic that `positions` belong to; empty if the log tells none."""
    model: str = ""
    """`describe` of the model."""
    num_ranks: int = 1
    """`learner.num_ranks` of the learner that wrote it."""
    zero_stage: int = 0
    """`learner.zero_stage` of the learner that wrote it."""
    dtype: str = "float32"
    """`learner.dtype` of the learner that wrote it."""
    num_non_finite: int = 0
    """Skipped updates so far."""


def read_latest(root: Path) -> tuple[Path, CheckpointState] | None:
    """The newest complete checkpoint below `root`; none if there never was one. Raises ConfigError if it cannot be read."""
    pointer = root / LATEST
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    directory = root / name
    try:
        return directory, msgspec.json.decode((directory / STATE).read_bytes(), type=CheckpointState)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{pointer}: expected the name of a complete checkpoint, got {name!r} ({error}); write another one into it, "
            f"or remove the file to start over from policy.path"
        ) from error


def check_fits(directory: Path, state: CheckpointState, mine: CheckpointState) -> None:
    """Raises ConfigError unless a checkpoint can be loaded by a learner like `mine`."""
    advice = "set it back, or take another run.name to start over"
    if state.model != mine.model:
        raise ConfigError(
            f"checkpoint {directory}: expected the model at policy.path, {mine.model}, got {state.model}; {advice}"
        )
    if state.dtype != mine.dtype:
        raise ConfigError(f"checkpoint {directory}: expected learner.dtype {mine.dtype!r}, got {state.dtype!r}; {advice}")
    if state.zero_stage != mine.zero_stage:
        raise ConfigError(
            f"checkpoint {directory}: expected learner.zero_stage {mine.zero_stage}, got {state.zero_stage}; {advice}"
        )
    if mine.zero_stage and state.num_ranks != mine.num_ranks:
        raise ConfigError(
            f"checkpoint {directory}: expected learner.num_ranks {mine.num_ranks}, got {state.num_ranks}; {advice}"
        )


def check_input(state: CheckpointState, input_id: str) -> None:
    """Raises ConfigError if the positions of a checkpoint belong to another topic than the one with `input_id`."""
    if state.run_id and state.input_id != input_id:
        raise ConfigError(
            f"checkpoint of run {state.run_id} step {state.step}: expected its input to be the topic with the id "
            f"{state.input_id}, got {input_id}: it was deleted and made anew, and what it held is missing; take another "
            "run.name to start over"
        )


def complete(directory: Path, state: CheckpointState, keep: int) -> None:
    """Makes a checkpoint whose engine state is written the newest one, and removes those beyond the `keep` newest."""
    (directory / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    flush_tree(directory)
    flush_path(directory.parent)
    pointer = directory.parent / LATEST
    temporary = pointer.with_name(f".{LATEST}.{os.getpid()}")
    temporary.write_text(directory.name + "\n", encoding="utf-8")
    flush_path(temporary)
    os.replace(temporary, pointer)
    flush_path(directory.parent)
    _retire([item for item in directory.parent.iterdir() if item.is_dir() and item != directory], keep - 1)


def _retire(directories: list[Path], keep: int) -> None:
    for directory in sorted(directories, key=lambda item: item.stat().st_mtime, reverse=True)[keep:]:
        shutil.rmtree(directory, ignore_errors=True)


def old_policies(root: Path, newest: Path, keep: int) -> list[Path]:
    """The policies `<root>/<run_id>/<version>` beyond the `keep` newest by age, `newest` being one that stays."""
    versions = [item for item in root.glob("*/*") if item.name.isdigit() and item != newest]
    return sorted(versions, key=lambda item: item.stat().st_mtime, reverse=True)[keep - 1 :]


def remove_policy(directory: Path) -> None:
    """Removes a policy, and the directory of its run with the last one."""
    shutil.rmtree(directory, ignore_errors=True)
    if directory.parent.is_dir() and not any(directory.parent.iterdir()):
        directory.parent.rmdir()
