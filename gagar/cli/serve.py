"""Runs one stage in this process: event loop, signals, transport; returns on SIGTERM or the planned end."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from gagar.config import Run
from gagar.errors import GagarError
from gagar.stream.handlers import Effect, Reducer, References, Settings, Source
from gagar.stream.journal import Journal
from gagar.stream.spec import Stage

if TYPE_CHECKING:
    from gagar.stream.transport import Transport

logger = logging.getLogger(__name__)

STOP_S = 14.0
"""From the first signal to the end of the process, whatever hangs."""
_last_resorts: list[threading.Timer] = []


class OpenReferences(References, Protocol):
    """References with a life of their own, for processes without a journal."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


def serve(stage: Stage, settings: Settings[Any], handler: Effect | Reducer[Any] | Source) -> None:
    """Runs `handler` as `stage`; returns when the stage ends (SIGTERM or planned end), raises GagarError otherwise."""
    run_loop(run_stage(stage, settings.run, handler))


def open_journal(stage: Stage, run: Run) -> Journal:
    """The learner's journal, constructed, not yet opened."""
    from gagar.stream.journal import LogJournal
    from topology.topics import DEAD_LETTERS

    return LogJournal(stage, _transport(run), DEAD_LETTERS)


def open_references(run: Run) -> OpenReferences:
    """Reads by reference in any topic, constructed, not yet opened."""
    from gagar.stream.readers.references import LogReferences
    from topology.topics import TOPICS

    return LogReferences(_transport(run), [topic for topic in TOPICS if topic.is_grouped], owns_transport=True)


async def run_stage(stage: Stage, run: Run, handler: Effect | Reducer[Any] | Source) -> None:
    """The stage until SIGTERM, SIGINT or the planned end; the transport is opened and closed around it."""
    from gagar.stream.lanes.sourcing import SourceRuntime
    from gagar.stream.runtime import StageRuntime
    from topology.topics import DEAD_LETTERS

    if stage.kind == "learner":
        raise GagarError(f"stage {stage.name}: expected a source, transform, effect or reducer, got a learner")
    stop = stop_event()
    transport = _transport(run)
    runtime: StageRuntime | SourceRuntime
    if isinstance(handler, Source):
        runtime = SourceRuntime(stage, handler, transport, DEAD_LETTERS)
    else:
        runtime = StageRuntime(stage, handler, transport, DEAD_LETTERS)
    await transport.open()
    try:
        await runtime.run(stop)
    finally:
        await transport.close()


def stop_event() -> asyncio.Event:
    """Set by SIGTERM or SIGINT; from then on the process has STOP_S to end, or is ended."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal(name: str) -> None:
        if not stop.is_set():
            logger.info("stopping on %s", name)
            stop.set()
            end_by_force_after(STOP_S)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    return stop


def end_by_force_after(seconds: float) -> None:
    """The last resort of a bounded stop: clients and threads may hang when no broker answers. `ended` calls it off."""

    def end() -> None:
        logger.error("stop took too long, ended by force after_s=%g", seconds)
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    _last_resorts.append(timer)


def ended() -> None:
    """The work of this process has ended by itself: what is left takes no force."""
    while _last_resorts:
        _last_resorts.pop().cancel()


def run_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs on uvloop where there is one; threads of the loop have ended when this returns."""
    try:
        try:
            import uvloop
        except ImportError:
            asyncio.run(coroutine)
        else:
            uvloop.run(coroutine)
    finally:
        ended()


def _transport(run: Run) -> "Transport":
    from gagar.broker.address import bootstrap_servers
    from gagar.stream.kafka.client import KafkaTransport

    return KafkaTransport(bootstrap_servers(run), run.run.name)
