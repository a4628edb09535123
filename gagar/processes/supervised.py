"""Keeps one process alive: starts it, writes its output to a log, starts it again when it dies, ends it when told.

In: a command and how patient to be. Out: why it is not kept any longer, as an exit code. Kept: the log file.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from gagar.errors import EXIT_REFUSED
from gagar.processes import orphan_cleanup
from gagar.processes.identity import signal_group

logger = logging.getLogger(__name__)

EXIT_GAVE_UP = 1

WasOutage = Callable[[float], Awaitable[bool]]


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A process to keep."""

    name: str
    """Of the process: its stage, and a number if there are several. Example: `verifier.1`."""
    command: tuple[str, ...]
    has_end: bool = False
    """Exit code 0 is its planned end; without one it is started again after any exit."""
    is_goal: bool = False
    """When all processes of this kind have ended as planned, so has the run."""


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be told of a kept process."""

    name: str
    pid: int | None
    """None while it is down."""
    restarts: int
    exit_code: int | None
    """Of the last life that ended; minus the signal, if one killed it."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long things are waited for."""

    first_backoff_s: float = 0.5
    max_backoff_s: float = 15.0
    settled_s: float = 60.0
    """A process that lived so long starts again at the first backoff."""
    max_early_deaths: int = 10
    """In a row, each before `settled_s`; then the process is given up."""
    stop_s: float = 20.0
    """From SIGTERM to SIGKILL."""

    def backoff_s(self, early_deaths: int) -> float:
        """Pause before the next life."""
        return float(min(self.max_backoff_s, self.first_backoff_s * 2 ** max(0, early_deaths - 1)))


class Keeper:
    """One process, kept."""

    def __init__(self, spec: ProcessSpec, holder: Path, log: Path, patience: Patience, was_outage: WasOutage) -> None:
        """`holder`: directory of the leash. `was_outage`: whether Kafka has been down since a moment of `time.monotonic`."""
        self.spec = spec
        self.log = log
        self._holder = holder
        self._patience = patience
        self._was_outage = was_outage
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._restarts = 0
        self._exit_code: int | None = None

    @property
    def state(self) -> ProcessState:
        pid = self._process.pid if self._process is not None and self._process.returncode is None else None
        return ProcessState(name=self.spec.name, pid=pid, restarts=self._restarts, exit_code=self._exit_code)

    async def keep(self) -> int:
        """Runs life after life: 0 at the planned end or after `stop`, 2 for wrong configuration, 1 if it dies too often."""
        early_deaths = 0
        while True:
            started = time.monotonic()
            code = await self._live()
            lived_s = time.monotonic() - started
            early_deaths = early_deaths + 1 if lived_s < self._patience.settled_s else 0
            final = await self._final(code, started, early_deaths)
            if final is not None:
                return final
            backoff_s = self._patience.backoff_s(early_deaths)
            logger.warning(
                "stage died name=%s code=%d lived_s=%.1f restart_in_s=%.1f", self.spec.name, code, lived_s, backoff_s
            )
            if await self._is_stopped_within(backoff_s):
                return 0
            self._restarts += 1

    async def _final(self, code: int, started: float, early_deaths: int) -> int | None:
        """What `keep` answers after a life that ended with `code`; none if another one follows."""
        if self._stopping.is_set() or (code == 0 and self.spec.has_end):
            return 0
        # In a later life, or with Kafka down, it means an outage: the configuration was good enough before.
        is_first = self._restarts == 0 and early_deaths > 0
        if code == EXIT_REFUSED and is_first and not await self._was_outage(started):
            logger.error("stage refused name=%s code=%d log=%s", self.spec.name, code, self.log)
            return EXIT_REFUSED
        if early_deaths > self._patience.max_early_deaths:
            logger.error("stage given up name=%s code=%d deaths=%d log=%s", self.spec.name, code, early_deaths, self.log)
            return EXIT_GAVE_UP
        return None

    async def _is_stopped_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _live(self) -> int:
        """One life; whatever it leaves behind in other sessions is gone when this returns."""
        if self._stopping.is_set():
            return 0
        with self.log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=self._environment(),
            )
        self._process = process
        logger.info("stage started name=%s pid=%d", self.spec.name, process.pid)
        try:
            self._exit_code = await process.wait()
        finally:
            signal_group(process.pid, signal.SIGKILL)
        orphans = await asyncio.to_thread(orphan_cleanup.members, self._holder, self.spec.name)
        orphan_cleanup.send(orphans, signal.SIGKILL)
        return self._exit_code

    def _environment(self) -> dict[str, str]:
        """One thread for each process unless the user says otherwise: several torch processes share the machine."""
        return {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            **orphan_cleanup.environment(self._holder, self.spec.name),
            "PYTHONUNBUFFERED": "1",
        }

    def stop(self) -> None:
        """Asks the process to end; `keep` returns when it has, or after `kill`."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process and its group by force."""
        if self.state.pid is not None:
            signal_group(self.state.pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Only to the process itself: it knows in which order its own children have to end."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
