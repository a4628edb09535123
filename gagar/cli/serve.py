"""Runs one stage in this process: event loop, signals, transport; returns on SIGTERM or the planned end."""

from typing import Any, Protocol

from gagar.config import Run
from gagar.stream.handlers import Effect, Reducer, References, Settings, Source, Transform
from gagar.stream.journal import Journal
from gagar.stream.spec import Stage


class OpenReferences(References, Protocol):
    """References with a life of their own, for processes without a journal."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


def serve(stage: Stage, settings: Settings[Any], handler: Transform | Effect | Reducer[Any] | Source) -> None:
    """Runs `handler` as `stage`; returns when the stage ends (SIGTERM or planned end), raises GagarError otherwise."""
    raise NotImplementedError


def open_journal(stage: Stage, run: Run) -> Journal:
    """The learner's journal, constructed, not yet opened."""
    raise NotImplementedError


def open_references(run: Run) -> OpenReferences:
    """Reads by reference, constructed, not yet opened."""
    raise NotImplementedError
