"""Watches the cluster of a run: notes when it was down, and starts the local broker again when that has died."""

import asyncio
import logging
import time
from collections.abc import Callable

from gagar.broker.address import broker_dir, names_cluster, running_state
from gagar.broker.local import start_broker
from gagar.broker.probe import is_any_answering
from gagar.broker.security import tls_context
from gagar.config import Run
from gagar.errors import GagarError
from gagar.processes.orphan_cleanup import environment
from gagar.processes.storage import Storage

logger = logging.getLogger(__name__)

WATCH_S = 1.0
PROBE_TIMEOUT_S = 2.0
BACKOFF_S = 5.0


class ClusterWatch:
    """`run` for ever in a task; ask `was_outage`."""

    def __init__(
        self,
        is_up: Callable[[], bool],
        revive: Callable[[], None] | None = None,
        storage: Storage | None = None,
        *,
        watch_s: float = WATCH_S,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        """`is_up` and `revive` block: they are called in a thread. `revive` raises GagarError. `storage`: of a local broker."""
        self._is_up = is_up
        self._revive = revive
        self._storage = storage
        self._watch_s = watch_s
        self._backoff_s = backoff_s
        self._down_at = float("-inf")

    async def run(self) -> None:
        """Probes for ever, and revives what is down. Raises UnavailableError instead of beginning with an empty directory,
        MachineError if the broker's disk is full."""
        while True:
            await asyncio.sleep(self._watch_s)
            if await self._probe() or self._revive is None:
                continue
            logger.warning("broker does not answer")
            if self._storage is not None:
                await asyncio.to_thread(self._storage.check_room)
            try:
                await asyncio.to_thread(self._revive)
            except GagarError as error:
                logger.error("broker not started error=%s", error)
                await asyncio.sleep(self._backoff_s)

    async def was_outage(self, since: float) -> bool:
        """Whether the cluster is down now, or was seen to be since then (`time.monotonic`)."""
        return not await self._probe() or self._down_at >= since

    async def _probe(self) -> bool:
        is_up = await asyncio.to_thread(self._is_up)
        if not is_up:
            self._down_at = time.monotonic()
        return is_up


def cluster_watch(run: Run) -> ClusterWatch:
    """The watch of the run's cluster; a local broker, which runs, is revived, another cluster is not ours to start."""
    if names_cluster(run):
        context = tls_context(run.kafka)
        return ClusterWatch(lambda: is_any_answering(run.kafka.servers, PROBE_TIMEOUT_S, context))
    directory = broker_dir(run)

    def revive() -> None:
        """Does nothing if the broker lives: one that is busy must not be ended on account of a slow answer."""
        state = start_broker(directory, environment(directory), run.kafka.start_timeout_s)
        logger.info("broker runs address=%s pid=%d", state.address, state.pid)

    def is_up() -> bool:
        state = running_state(directory)
        return state is not None and is_any_answering([state.address], PROBE_TIMEOUT_S)

    return ClusterWatch(is_up, revive, Storage(directory))
