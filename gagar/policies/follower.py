"""Keeps an engine on the newest policy version: verifies the checksum and loads in flight, one version at a time.

In: PolicyVersion records in log order; the last one wins, whatever its number (a restarted learner has a new run id).
A version whose files are gone, damaged or another model's is refused with a WARNING and the one before stays; missing files
are looked for again, since a shared file system may be late.
"""

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import Protocol

from gagar.errors import ConfigError, GagarError, UnavailableError
from gagar.policies.model_directory import weights_checksum
from gagar.records import PolicyVersion

logger = logging.getLogger(__name__)

RETRY_S = 5.0
"""Between two looks for files that were not there."""


class LoadsWeights(Protocol):
    """What of an engine is needed here."""

    async def load_weights(self, location: Path, version: int, /) -> None:
        """Loads the weights in a directory; raises ConfigError if they belong to another model, and then the old ones stay."""


class PolicyFollower:
    """Around an open engine; `start` and `close` belong to the event loop that uses it."""

    def __init__(self, engine: LoadsWeights, retry_s: float = RETRY_S) -> None:
        self._engine = engine
        self._retry_s = retry_s
        self._newest: PolicyVersion | None = None
        self._loaded: PolicyVersion | None = None
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._fault = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="policy-follower")
        self._task.add_done_callback(lambda _: self._settled.set())

    def offer(self, version: PolicyVersion) -> None:
        """The next record of the topic."""
        self._newest = version
        self._changed.set()

    async def ready(self) -> None:
        """Until a published version is loaded. Raises UnavailableError if there is one and it cannot be loaded."""
        await self._settled.wait()
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()
        if self._loaded is None:
            raise UnavailableError(self._fault)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _follow(self) -> None:
        is_missing = False
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._retry_s if is_missing else None)
            self._changed.clear()
            version = self._newest
            is_missing = version is not None and version != self._loaded and not await self._try(version)
            if version is not None:
                self._settled.set()

    async def _try(self, version: PolicyVersion) -> bool:
        """Loads a version or refuses it; False if it is worth another try."""
        try:
            await self._load(version)
        except GagarError as error:
            self._fault = str(error)
            logger.warning("policy version refused run=%s version=%d error=%s", version.run_id, version.version, error)
            return not isinstance(error, UnavailableError)
        return True

    async def _load(self, version: PolicyVersion) -> None:
        start = time.monotonic()
        location = Path(version.location)
        checksum = await asyncio.to_thread(weights_checksum, location)
        if checksum != version.checksum:
            raise ConfigError(f"policy weights {location}: expected sha256 {version.checksum}, got {checksum}")
        await self._engine.load_weights(location, version.version)
        self._loaded = version
        seconds = time.monotonic() - start
        logger.info("policy loaded run=%s version=%d seconds=%.3f", version.run_id, version.version, seconds)
