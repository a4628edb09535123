"""The supervisor: every stage of a run as processes of this machine, kept alive, and gone when this process is gone.

In: the processes and the run's directory. Out: log files, the states of the processes, how the run ended. Promised: one
supervisor of a run at a time; no process outlives it, even if it is killed (see gagar.processes.orphan_cleanup). The local
broker, if the run uses it, is started again when it dies.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from gagar.processes.log_tail import LogTail, fresh_log
from gagar.processes.orphan_cleanup import OrphanCleanup
from gagar.processes.storage import Storage
from gagar.processes.supervised import ProcessSpec, ProcessState, RestartPolicy, SupervisedProcess

logger = logging.getLogger(__name__)

TAIL_S = 0.1
GUARD_S = 1.0

OnLine = Callable[[str, str], None]
"""Called with the name of a process and a line of its log."""


class WatchesCluster(Protocol):
    """Watches the cluster of a run."""

    async def run(self) -> None:
        """Watches for ever, and starts what has died again if it may; raises GagarError if that can never be."""

    async def was_outage(self, since: float, /) -> bool:
        """Whether the cluster is down now, or was seen to be since then (`time.monotonic`)."""


class Supervisor:
    """All processes of a run. `hold`, `start`, `wait`, `stop`, in this order and in one event loop."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        directory: Path,
        watch: WatchesCluster,
        *,
        on_line: OnLine | None = None,
        restart_policy: RestartPolicy | None = None,
        held: ExitStack | None = None,
    ) -> None:
        """`directory`: of the run; logs go to `logs/<process>.log` there. `watch` keeps an eye on the cluster. `held`: the run,
        if it is taken already, to let go of at the end."""
        self._watch = watch
        self._specs = specs
        self._restart_policy = restart_policy or RestartPolicy()
        self._directory = directory
        self._on_line = on_line
        self._held = held if held is not None else ExitStack()
        self._is_held = held is not None
        self._processes: list[SupervisedProcess] = []
        self._kept: dict[asyncio.Task[int], SupervisedProcess] = {}
        self._side: list[asyncio.Task[None]] = []

    async def hold(self) -> None:
        """Takes the run for this supervisor and ends what an earlier one left, unless it is held. Raises UnavailableError if
        another one lives."""
        if not self._is_held:
            await asyncio.to_thread(self._held.enter_context, OrphanCleanup(self._directory, is_exclusive=True))

    async def start(self) -> None:
        """Starts every process of a run that is held."""
        storage = Storage(self._directory)
        for spec in self._specs:
            log = fresh_log(self._directory / "logs" / f"{spec.name}.log")
            was_outage = self._watch.was_outage
            process = SupervisedProcess(spec, storage, self._directory, log, self._restart_policy, was_outage)
            self._processes.append(process)
            self._kept[asyncio.create_task(process.keep(), name=spec.name)] = process
        if self._on_line is not None:
            self._side.append(asyncio.create_task(self._follow(self._on_line)))
        self._side += [asyncio.create_task(self._watch.run()), asyncio.create_task(_guard(storage))]

    async def wait(self) -> int:
        """How the run ended: 0 as planned, else the exit code of the process that was given up. The others still run then:
        call `stop`. Raises GagarError if the run cannot go on: a full disk, a directory that is gone."""
        while True:
            for task in self._side:
                if task.done():
                    task.result()
            done = [task for task in self._kept if task.done()]
            codes = [task.result() for task in done]
            if any(codes):
                return max(codes)
            if self._has_reached_its_goal() or len(done) == len(self._kept):
                return 0
            await asyncio.wait({*self._side, *self._kept} - set(done), return_when=asyncio.FIRST_COMPLETED)

    def _has_reached_its_goal(self) -> bool:
        goals = [task for task, process in self._kept.items() if process.spec.is_goal]
        return bool(goals) and all(task.done() for task in goals)

    async def stop(self) -> None:
        """Ends everything within a bounded time: in good order, then by force. Quiet if nothing was started."""
        for process in self._processes:
            process.stop()
        await asyncio.gather(*(self._ended(task, process) for task, process in self._kept.items()))
        for side in self._side:
            side.cancel()
        await asyncio.gather(*self._side, *self._kept, return_exceptions=True)
        await asyncio.to_thread(self._held.close)

    def stop_at_once(self) -> None:
        """A `stop` that is under way waits for no work any more."""
        for process in self._processes:
            process.stop()

    async def _ended(self, task: asyncio.Task[int], process: SupervisedProcess) -> None:
        stop_s = self._restart_policy.stop_s + process.spec.drain_s
        await asyncio.wait([task], timeout=stop_s)
        if not task.done():
            logger.warning("stage killed name=%s waited_s=%.0f", process.spec.name, stop_s)
            process.kill()
            await asyncio.wait([task])

    def states(self) -> list[ProcessState]:
        """Every process, in the order of the stages."""
        return [process.state for process in self._processes]

    async def _follow(self, on_line: OnLine) -> None:
        """Tells the lines of all logs as they come; the rest at the end."""
        tails = {process.spec.name: LogTail(process.log) for process in self._processes}
        try:
            while True:
                for name, tail in tails.items():
                    for line in tail.new_lines():
                        on_line(name, line)
                await asyncio.sleep(TAIL_S)
        finally:
            for name, tail in tails.items():
                for line in tail.rest():
                    on_line(name, line)


async def _guard(storage: Storage) -> None:
    """Raises UnavailableError when the run's directory is gone."""
    while True:
        storage.check()
        await asyncio.sleep(GUARD_S)
