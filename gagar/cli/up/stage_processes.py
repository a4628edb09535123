"""The stages of a run as processes of this machine: the command line of each."""

import sys
from collections.abc import Mapping, Sequence

from gagar.config import Run, nearest
from gagar.errors import ConfigError
from gagar.processes.supervised import ProcessSpec
from gagar.stream.spec import Stage
from topology.composition import drain_s
from topology.stages import STAGES

SINGLE = ("source", "learner")
"""Kinds of which one process does all the work, and ends when it is done."""


def stage_processes(argv_tail: Sequence[str], scale: Mapping[str, int], run: Run) -> list[ProcessSpec]:
    """Every stage of the topology as processes that run `gagar run`. Raises ConfigError for an unknown stage, or more processes
    of one than can have work."""
    known = [stage.name for stage in STAGES]
    for name in scale:
        if name not in known:
            raise ConfigError(f"--scale {name}: expected one of {', '.join(known)}, got {name}{nearest(name, known)}")
    for stage in STAGES:
        _check_scale(stage, scale.get(stage.name, 1), run.kafka.num_partitions)
    return [spec for stage in STAGES for spec in _processes(stage, argv_tail, scale.get(stage.name, 1), run)]


def _check_scale(stage: Stage, num: int, num_partitions: int) -> None:
    if stage.kind in SINGLE and num > 1:
        raise ConfigError(f"--scale {stage.name}={num}: expected 0 or 1, got {num}; a second one would fence the first")
    if num > num_partitions:
        raise ConfigError(
            f"--scale {stage.name}={num}: expected at most kafka.num_partitions, {num_partitions}, got {num}; "
            "the others would have no work"
        )


def _processes(stage: Stage, argv_tail: Sequence[str], num: int, run: Run) -> list[ProcessSpec]:
    command = (sys.executable, "-P", "-m", "gagar.cli.main", "run", stage.name, *argv_tail)
    names = [stage.name] if num == 1 else [f"{stage.name}.{index}" for index in range(1, num + 1)]
    has_end, is_goal, work_s = stage.kind in SINGLE, stage.kind == "source", drain_s(stage, run)
    return [ProcessSpec(name=name, command=command, has_end=has_end, is_goal=is_goal, drain_s=work_s) for name in names]
