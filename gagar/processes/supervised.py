"""Keeps one process alive: starts it, writes its output to a log, starts it again when it dies, ends it when told.

In: a command and a restart policy. Out: why it is not kept alive any longer, as an exit code. Kept: the log file.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from gagar.errors import EXIT_MACHINE, EXIT_REFUSED, EXIT_UNAVAILABLE
from gagar.processes import orphan_cleanup
from gagar.processes.identity import signal_group
from gagar.processes.log_tail import last_words
from gagar.processes.storage import Storage

logger = logging.getLogger(__name__)

EXIT_GAVE_UP = 1

WasOutage = Callable[[float], Awaitable[bool]]
"""Whether Kafka has been down since a moment of `time.monotonic`."""


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A process to supervise."""

    name: str
    """Of the process: its stage, and a number if there are several. Example: `verifier.1`."""
    command: tuple[str, ...]
    has_end: bool = False
    """Exit code 0 is its planned end; without one it is started again after any exit."""
    drain_s: float = 0.0
    """Seconds that its work may take to end after SIGTERM, beside `RestartPolicy.stop_s`."""
    is_goal: bool = False
    """When all processes of this kind have ended as planned, so has the run."""


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be told of a supervised process."""

    name: str
    pid: int | None
    """None while it is down."""
    restarts: int
    exit_code: int | None
    """Of the last life that ended; minus the signal, if one killed it."""


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a process that died is started again, and when no longer."""

    first_backoff_s: float = 0.5
    max_backoff_s: float = 15.0
    settled_s: float = 60.0
    """A process that lived so long starts again at the first backoff."""
    max_early_deaths: int = 10
    """In a row, each before `settled_s`; then the process is given up."""
    max_unavailable: int = 3
    """In a row, of a process that has never settled, while Kafka is up: what it asks for will hardly come."""
    stop_s: float = 20.0
    """From SIGTERM to SIGKILL, beside the time that the work may take to end."""

    def backoff_s(self, early_deaths: int) -> float:
        """Pause before the next life."""
        return float(min(self.max_backoff_s, self.first_backoff_s * 2 ** max(0, early_deaths - 1)))


class SupervisedProcess:
    """One process, kept alive."""

    def __init__(
        self, spec: ProcessSpec, storage: Storage, holder: Path, log: Path, restart_policy: RestartPolicy, was_outage: WasOutage
    ) -> None:
        """`holder`: the directory that it is a member of (see orphan_cleanup), which `storage` looks after."""
        self.spec = spec
        self.log = log
        self._storage = storage
        self._holder = holder
        self._restart_policy = restart_policy
        self._was_outage = was_outage
        self._stopping = asyncio.Event()
        self._stop_signal = signal.SIGTERM
        self._process: asyncio.subprocess.Process | None = None
        self._restarts = 0
        self._early_deaths = 0
        self._unavailable = 0
        self._has_settled = False
        self._exit_code: int | None = None

    @property
    def state(self) -> ProcessState:
        pid = self._process.pid if self._process is not None and self._process.returncode is None else None
        return ProcessState(name=self.spec.name, pid=pid, restarts=self._restarts, exit_code=self._exit_code)

    async def keep(self) -> int:
        """Runs life after life: 0 at the planned end or after `stop`, else why it is given up: the exit code of wrong
        configuration, of something missing outside or of a machine that lacks something, or 1 if it dies too often.

        Raises MachineError if the disk is full, UnavailableError if the run's directory is gone.
        """
        while True:
            started = time.monotonic()
            code = await self._live()
            if self._stopping.is_set() or (code == 0 and self.spec.has_end):
                return 0
            await asyncio.to_thread(self._storage.check_room)
            lived_s = time.monotonic() - started
            self._count(code, lived_s)
            final = await self._final(code, started)
            if self._stopping.is_set():  # meanwhile
                return 0
            name, last = self.spec.name, last_words(self.log)
            if final is not None:
                logger.error("stage given up name=%s code=%d last=%s log=%s", name, code, last, self.log)
                return final
            pause_s = self._restart_policy.backoff_s(self._early_deaths)
            told = "stage died name=%s code=%d lived_s=%.1f restart_in_s=%.1f last=%s log=%s"
            logger.warning(told, name, code, lived_s, pause_s, last, self.log)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
                return 0
            self._restarts += 1

    def _count(self, code: int, lived_s: float) -> None:
        is_early = lived_s < self._restart_policy.settled_s
        self._has_settled |= not is_early
        self._early_deaths = self._early_deaths + 1 if is_early else 0
        self._unavailable = self._unavailable + 1 if code == EXIT_UNAVAILABLE else 0

    async def _final(self, code: int, started: float) -> int | None:
        """What `keep` answers after a life that ended with `code`; none if another one follows."""
        if code == EXIT_MACHINE:
            return EXIT_MACHINE
        # In a later life, or with Kafka down, it means an outage: the configuration was good enough before.
        is_first = self._restarts == 0 and not self._has_settled
        if code == EXIT_REFUSED and is_first and not await self._was_outage(started):
            return EXIT_REFUSED
        is_missing = self._unavailable > self._restart_policy.max_unavailable and not self._has_settled
        if is_missing and not await self._was_outage(started):
            return EXIT_UNAVAILABLE
        return EXIT_GAVE_UP if self._early_deaths > self._restart_policy.max_early_deaths else None

    async def _live(self) -> int:
        """One life; whatever it leaves behind in other sessions is gone when this returns."""
        if self._stopping.is_set():
            return 0
        self._storage.check()
        self.log.parent.mkdir(exist_ok=True)
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
        if self._stopping.is_set():  # meanwhile
            process.send_signal(self._stop_signal)
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
        """Asks the process to end; `keep` returns when it has, or after `kill`. A stage that is asked again no longer waits for
        its work. Only the process itself is signalled: it knows in which order its own children have to end."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process and its group by force, after `stop`; also one that is just being started."""
        self._stop_signal = signal.SIGKILL
        if self.state.pid is not None:
            signal_group(self.state.pid, signal.SIGKILL)
