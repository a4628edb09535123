"""Starts and ends real stage processes."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from gagar.config import DRAIN_S
from gagar.stream.spec import Topic
from tests.contract.world import KafkaWorld, read

ROOT = Path(__file__).parents[2]


class StageProcess:
    """One process of a stage; its output goes to a file that a failing test shows."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def until_logged(self, words: str, timeout_s: float = 60.0) -> None:
        """Until its log holds `words`."""
        async with asyncio.timeout(timeout_s):
            while words not in self.log.read_text():
                await asyncio.sleep(0.05)

    def keys(self, word: str) -> list[str]:
        """Of the deliveries whose handlers have begun, or ended, in order."""
        return re.findall(rf" handler {word} (\S+)$", self.log.read_text(), re.MULTILINE)

    @property
    def numbers(self) -> list[str]:
        """Partition numbers that it owns."""
        assigned = re.findall(r"partitions assigned .*numbers=\[(.*)\]", self.log.read_text())
        return assigned[-1].split(", ") if assigned and assigned[-1] else []

    def count(self, counter: str) -> int:
        """As the stage has told it last."""
        return int(re.findall(rf" {counter}=(\d+)", self.log.read_text())[-1])

    async def ended(self, timeout_s: float = 60.0) -> int:
        """Exit code."""
        return await asyncio.wait_for(self.process.wait(), timeout_s)


@contextlib.asynccontextmanager
async def stage_process(
    world: KafkaWorld,
    kind: str,
    tmp_path: Path,
    death: str = "",
    handle_s: float = 0.05,
    *,
    drain_s: float = DRAIN_S,
    member: str = "",
) -> AsyncIterator[StageProcess]:
    """A stage at work in a process of its own; killed at the end of the `with` if it still runs."""
    log = tmp_path / f"{kind}-{len(list(tmp_path.iterdir()))}.log"
    command = [sys.executable, "-m", "tests.broker.stage_process", world.servers, world.name, kind, *([death] if death else [])]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "HANDLE_S": str(handle_s),
                "DRAIN_S": str(drain_s),
                "MEMBER": member,
                "LEARNER_ROOT": str(tmp_path),
                "NUM_PARTITIONS": str(world.num_partitions),
            },
        )
    try:
        yield StageProcess(process, log)
    except BaseException:
        print(f"--- {log}\n{log.read_text()[-6000:]}")  # noqa: T201
        raise
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            await process.wait()


async def counts(world: KafkaWorld, topic: Topic) -> Counter[str]:
    """How often each key and sample lies committed in a topic."""
    return Counter(f"{d.record.group_id}/{getattr(d.record, 'sample_index', 0)}" for d in await read(world, topic))


async def until_count(world: KafkaWorld, topic: Topic, count: int, timeout_s: float = 60.0) -> Counter[str]:
    """The counts as soon as there are `count` different ones."""
    found: Counter[str] = Counter()
    async with asyncio.timeout(timeout_s):
        while len(found) < count:
            await asyncio.sleep(0.3)
            found = await counts(world, topic)
    return found
