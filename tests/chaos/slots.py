"""The stages' processes: a slot for each stage, in which one process (or, for a while, more) is kept alive.

Orphan cleanup of the broker's directory holds everything, so nothing outlives the suite, however that ends.
"""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from gagar.processes.orphan_cleanup import environment
from tests.bench.processes import ROOT
from tests.chaos.plan import STAGE_NAMES, Plan
from tests.chaos.stage import EXIT_FENCED, EXIT_UNAVAILABLE

STOP_S = 15.0
"""From SIGTERM to the end of a process, whatever is away."""
RESPAWN_S = 0.3
EXPECTED_CODES = {0, EXIT_FENCED, EXIT_UNAVAILABLE, -signal.SIGKILL}


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a process."""

    stage: str
    code: int
    told: str
    """Its last words."""
    was_told: bool = False
    """To stop."""

    @property
    def is_expected(self) -> bool:
        """Stopped, killed, fenced by a successor, or without a log. A process that was told to stop before it heard signals,
        and so before its first word, ends by the signal itself."""
        is_unborn = self.code == -signal.SIGTERM and self.was_told and not self.told
        return self.code in EXPECTED_CODES or is_unborn


class Slot:
    """The processes of one stage. Kept: `target` of them alive, until `stop`."""

    def __init__(self, stage: str, plan_path: Path, holder: Path, note: Callable[[Exit], None]) -> None:
        self.stage = stage
        self.target = 1
        self.alive: list[Process] = []
        """Oldest first."""
        self.started_at = 0.0
        """When the newest process was started."""
        self.is_finished = False
        """A process has ended by itself, in good order: there is no more to do."""
        self.late_stops: list[float] = []
        """Seconds that processes took to end after SIGTERM, where that was too long."""
        self._plan_path = plan_path
        self._environment = {**os.environ, **environment(holder), "OMP_NUM_THREADS": "1"}
        self._note = note
        self._num_started = 0
        self._filling = asyncio.Lock()
        self._told_to_stop: set[int] = set()
        self._watches: set[asyncio.Task[None]] = set()

    async def fill(self) -> None:
        """Starts processes until there are `target`."""
        async with self._filling:
            while len(self.alive) < self.target and not self.is_finished:
                await self._start()

    async def stop(self, process: Process) -> bool:
        """SIGTERM; SIGKILL, and a note, if it takes too long. False if the process had ended before."""
        self._told_to_stop.add(process.pid)
        began = time.monotonic()
        was_alive = send(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S + 5.0):
                await process.wait()
        except TimeoutError:
            send(process, signal.SIGKILL)
            await process.wait()
        if time.monotonic() - began > STOP_S:
            self.late_stops.append(time.monotonic() - began)
        return was_alive

    async def shrink(self, processes: list[Process]) -> None:
        """Stops processes without putting others in their place."""
        self.target = 1
        await asyncio.gather(*(self.stop(process) for process in processes))

    async def close(self) -> None:
        """Stops all; the slot stays empty."""
        self.is_finished = True
        await asyncio.gather(*(self.stop(process) for process in list(self.alive)))
        await asyncio.gather(*self._watches)

    async def _start(self) -> None:
        log_path = self._plan_path.parent / f"{self.stage}.{self._num_started}.log"
        self._num_started += 1
        self.started_at = time.time()
        with log_path.open("wb") as log:
            command = (sys.executable, "-m", "tests.chaos.stage", str(self._plan_path), self.stage)
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env=self._environment, stdin=DEVNULL, stdout=log, stderr=log
            )
        self.alive.append(process)
        watch = asyncio.create_task(self._watch(process, log_path))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _watch(self, process: Process, log_path: Path) -> None:
        code = await process.wait()
        self.alive.remove(process)
        was_told = process.pid in self._told_to_stop
        self._note(Exit(stage=self.stage, code=code, told=last_words(log_path), was_told=was_told))
        if code == 0 and not was_told:
            self.is_finished = True
        await asyncio.sleep(RESPAWN_S)
        await self.fill()


def send(process: Process, number: signal.Signals) -> bool:
    """Signals a process; False, and quiet, if it is gone."""
    if process.returncode is not None:
        return False
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return False
    return True


def last_words(path: Path) -> str:
    """The last line of a log that tells of an error, shortened; else the last one."""
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    telling = [line for line in lines if "Error: " in line or " ERROR " in line] or lines
    return telling[-1][:200] if telling else ""


@asynccontextmanager
async def slots(plan: Plan, holder: Path, note: Callable[[Exit], None]) -> AsyncIterator[Mapping[str, Slot]]:
    """All stages of a run at work, for the length of a `with`."""
    path = plan.write()
    found = {stage: Slot(stage, path, holder, note) for stage in STAGE_NAMES}
    try:
        await asyncio.gather(*(slot.fill() for slot in found.values()))
        yield found
    finally:
        await asyncio.gather(*(slot.close() for slot in found.values()))
