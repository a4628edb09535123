"""The supervisor: every stage of a run as processes of this machine, kept alive, and gone when this process is gone.

In: the processes and the run's directory. Out: log files, the states of the processes, how the run ended. Promised: one
supervisor of a run at a time; no process outlives it, even if it is killed (see gagar.processes.orphan_cleanup). The local
broker, if the run uses it, is started again when it dies.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from gagar.processes.log_tail import LogTail
from gagar.processes.orphan_cleanup import Leash
from gagar.processes.supervised import Keeper, Patience, ProcessSpec, ProcessState

logger = logging.getLogger(__name__)

TAIL_S = 0.1

OnLine = Callable[[str, str], None]
"""Called with the name of a process and a line of its log."""


class WatchesCluster(Protocol):
    """Watches the cluster of a run."""

    async def run(self) -> None:
        """Watches for ever, and starts what has died again if it may."""

    async def was_outage(self, since: float, /) -> bool:
        """Whether the cluster is down now, or was seen to be since then (`time.monotonic`)."""


class Supervisor:
    """All processes of a run. `start`, then `wait`, then `stop`, in one event loop."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        directory: Path,
        watch: WatchesCluster,
        *,
        on_line: OnLine | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`directory`: of the run; logs go to `logs/<process>.log` there. `watch` keeps an eye on the cluster."""
        self._watch = watch
        self._specs = specs
        self._patience = patience or Patience()
        self._directory = directory
        self._on_line = on_line
        self._leash = Leash(directory, is_exclusive=True)
        self._is_held = False
        self._keepers: list[Keeper] = []
        self._kept: dict[asyncio.Task[int], Keeper] = {}
        self._side: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Ends what an earlier supervisor of the run left, then starts every process. Raises UnavailableError if another
        supervisor of the run lives."""
        await asyncio.to_thread(self._leash.__enter__)
        self._is_held = True
        logs = self._directory / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        for spec in self._specs:
            keeper = Keeper(spec, self._directory, fresh_log(logs / f"{spec.name}.log"), self._patience, self._watch.was_outage)
            self._keepers.append(keeper)
            self._kept[asyncio.create_task(keeper.keep(), name=spec.name)] = keeper
        if self._on_line is not None:
            self._side.append(asyncio.create_task(self._follow(self._on_line)))
        self._side.append(asyncio.create_task(self._watch.run()))

    async def wait(self) -> int:
        """How the run ended: 0 as planned, 2 if a stage refused its configuration, 1 if one was given up. The others still run
        then: call `stop`."""
        while True:
            done = [task for task in self._kept if task.done()]
            codes = [task.result() for task in done]
            if any(codes):
                return max(codes)
            if self._has_reached_its_goal() or len(done) == len(self._kept):
                return 0
            await asyncio.wait(set(self._kept) - set(done), return_when=asyncio.FIRST_COMPLETED)

    def _has_reached_its_goal(self) -> bool:
        goals = [task for task, keeper in self._kept.items() if keeper.spec.is_goal]
        return bool(goals) and all(task.done() for task in goals)

    async def stop(self) -> None:
        """Ends everything within a bounded time: in good order, then by force. Quiet if nothing was started."""
        for keeper in self._keepers:
            keeper.stop()
        if self._kept:
            _, late = await asyncio.wait(self._kept, timeout=self._patience.stop_s)
            for task in late:
                logger.warning("stage killed name=%s waited_s=%.0f", task.get_name(), self._patience.stop_s)
                self._kept[task].kill()
            await asyncio.wait(self._kept)
        for side in self._side:
            side.cancel()
        await asyncio.gather(*self._side, return_exceptions=True)
        if self._is_held:
            self._is_held = False
            await asyncio.to_thread(self._leash.__exit__, None, None, None)

    def states(self) -> list[ProcessState]:
        """Every process, in the order of the stages."""
        return [keeper.state for keeper in self._keepers]

    async def _follow(self, on_line: OnLine) -> None:
        """Tells the lines of all logs as they come; the rest at the end."""
        tails = {keeper.spec.name: LogTail(keeper.log) for keeper in self._keepers}
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


def fresh_log(path: Path) -> Path:
    """The path, with nothing there; the log of the run before is kept beside it."""
    if path.exists():
        path.replace(path.with_name(f"{path.name}.1"))
    return path
