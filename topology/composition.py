"""The composition root: the one place that turns a run file into a handler, and serves it as a stage in this process.

A stage's module gives `Config`, the type of its table, and `make(resources, config)`, its handler. `gagar run` serves it here;
whoever runs a stage otherwise (tests, replay) makes its handler here.
"""

import asyncio
import importlib
import logging
from collections.abc import Coroutine
from typing import Any

from gagar.config import DRAIN_S, SHARED, Run, WorkTable, convert, did_you_mean, nearest
from gagar.errors import ConfigError
from gagar.health.reporter import reporting
from gagar.processes.forced_end import called_off, stop_event
from gagar.stream.handlers import Effect, Reducer, Source, Standalone
from gagar.stream.limits import RuntimeLimits
from gagar.stream.runtime import StageRuntime
from gagar.stream.spec import Stage
from topology.resources import Resources
from topology.stages import STAGES
from topology.topics import DEAD_LETTERS

logger = logging.getLogger(__name__)

Handler = Effect | Reducer[Any] | Source | Standalone


def find_stage(name: str) -> Stage:
    """The stage of that name; raises ConfigError that lists the names."""
    for stage in STAGES:
        if stage.name == name:
            return stage
    names = [stage.name for stage in STAGES]
    raise ConfigError(f"stage: expected one of {', '.join(names)}, got {name!r}{nearest(name, names)}")


def stage_config(stage: Stage, run: Run) -> Any:
    """The stage's table as its `Config`; raises ConfigError if it is wrong."""
    return convert(stage.table, run.tables.get(stage.table, {}), importlib.import_module(stage.module).Config)


def drain_s(stage: Stage, run: Run) -> float:
    """Seconds that the stage's work may take to end at a stop. Raises ConfigError if its table is wrong."""
    config = stage_config(stage, run)
    return config.drain_s if isinstance(config, WorkTable) else DRAIN_S


def make_handler(stage: Stage, resources: Resources) -> Handler:
    """What the stage does, not yet open. Raises ConfigError if its table, or something that it names, is wrong."""
    handler: Handler = importlib.import_module(stage.module).make(resources, stage_config(stage, resources.run))
    return handler


def check_tables(run: Run) -> Resources:
    """The resources of a run of which every table is known and right; raises ConfigError. Nothing is connected to."""
    check_table_names(run)
    for stage in STAGES:
        stage_config(stage, run)
    resources = Resources(run)
    tasks = resources.tasks
    logger.debug("tasks read train=%d heldout=%d", len(tasks.train.ids), len(tasks.heldout.ids))
    return resources


def check_table_names(run: Run) -> None:
    """Raises ConfigError unless every table is known."""
    known = [*SHARED, "tasks", *(stage.table for stage in STAGES)]
    for name in run.tables:
        if name not in known:
            raise ConfigError(f"[{name}]: expected a known table, got {name}{did_you_mean(name, known)}")


def serve(stage: Stage, resources: Resources) -> None:
    """Runs the stage until it ends (SIGTERM, SIGINT or the planned end); raises GagarError otherwise."""
    with reporting(resources.run.run.name, stage.name) as resources.health:
        handler = make_handler(stage, resources)
        if isinstance(handler, Standalone):
            handler.run()
        else:
            limits = resources.limits(drain_s(stage, resources.run))
            run_loop(serve_handler(stage, resources, handler, limits))


async def serve_handler(
    stage: Stage, resources: Resources, handler: Effect | Reducer[Any] | Source, limits: RuntimeLimits | None = None
) -> None:
    """The handler as the stage, until a signal or the planned end; the transport is opened and closed around it."""
    limits, transport = limits or resources.limits(), resources.transport()
    num_partitions = resources.run.kafka.num_partitions
    runtime = StageRuntime(stage, handler, transport, DEAD_LETTERS, limits, num_partitions, resources.health)
    stop = stop_event(lambda: runtime.has_joined, limits.drain_s, runtime.stop_at_once)
    await transport.open()
    try:
        await runtime.run(stop)
    finally:
        await transport.close()


def run_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs on uvloop where there is one; threads of the loop have ended when this returns."""
    with called_off():
        try:
            import uvloop
        except ImportError:
            asyncio.run(coroutine)
        else:
            uvloop.run(coroutine)
