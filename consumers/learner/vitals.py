"""How a rank of the learner is: its rounds on the main thread, its log on an event loop in the background."""

import time
from collections.abc import Callable
from typing import Protocol

from gagar.health.reporter import HealthReporter
from gagar.health.vitals import Phase, Vitals
from gagar.stream.journal import LogJournal
from gagar.training.background import Background


class Rounds(Protocol):
    """A rank at work."""

    round_at: float
    """When its round began, by the monotonic clock."""


class RankVitals:
    """Asked on the background's event loop. A round that takes longer than ranks wait for each other does not go on."""

    def __init__(self, collective_timeout_s: float, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self.rounds: Rounds | None = None
        """None before the first one."""
        self._is_stopping = is_stopping
        self._patience_s = collective_timeout_s
        self._journal: LogJournal | None = None

    def follow(self, health: HealthReporter | None, background: Background, journal: LogJournal | None) -> None:
        """Lets `health` ask from now on. `journal`: of rank 0."""
        self._journal = journal
        if health is not None:
            background.submit(self._begin(health))

    async def _begin(self, health: HealthReporter) -> None:
        health.follow(self.vitals)

    def vitals(self) -> Vitals:
        """The rank now."""
        rounds, phase = self.rounds, self._phase()
        round_at = rounds.round_at if rounds is not None else None
        if self._journal is not None:
            return self._journal.vitals(phase, round_at, self._patience_s)
        now = time.monotonic()
        return Vitals(at=now, phase=phase, is_member=True, active_at=round_at, patience_s=self._patience_s)

    def _phase(self) -> Phase:
        if self._is_stopping():
            return "stopping"
        return "working" if self.rounds is not None else "starting"
