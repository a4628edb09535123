"""The memory of the stages: sampled while a run goes on, judged by its first and its last tenth.

In: the resident memory of every living process of a stage. Out: by stage the median of each of the two tenths. A process is
left out while it starts: it imports, reads its tables and takes its partitions over then. Processes are killed and replaced by
others, so what is judged is the stage. Not promised: that a leak shows which is gone with a process that died young.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec
import psutil

from gagar.broker.address import running_state
from tests.broker.cluster import node_directories

EVERY_S = 3.0
STARTING_S = 20.0
"""The age below which a process is left out."""
MAX_RATIO, MAX_MIB = 1.15, 10.0
"""Growth beyond both is a fault: a stage that keeps 200 bytes of each of 60,000 groups has grown by 11 MiB."""
MIB = 1 << 20

Processes = Callable[[], Mapping[str, Sequence[int]]]
"""The pids of the living, by what they are."""


class MemorySample(msgspec.Struct, frozen=True):
    """The resident memory of one process at one moment."""

    at: float
    name: str
    """Of the stage, or `broker` or `driver`."""
    rss_bytes: int


class Growth(msgspec.Struct, frozen=True):
    """What a stage held in the first and in the last tenth of a run."""

    first_mib: float
    last_mib: float

    @property
    def ratio(self) -> float:
        return self.last_mib / self.first_mib

    @property
    def is_flat(self) -> bool:
        return self.ratio <= MAX_RATIO or self.last_mib - self.first_mib <= MAX_MIB


def growth(samples: Sequence[MemorySample]) -> dict[str, Growth]:
    """By name, in order of it; those without a sample in both tenths are left out."""
    if not samples:
        return {}
    began, ended = samples[0].at, samples[-1].at
    tenth_s = (ended - began) / 10
    found = {}
    for name in sorted({sample.name for sample in samples}):
        mine = [sample for sample in samples if sample.name == name]
        first = [sample.rss_bytes / MIB for sample in mine if sample.at <= began + tenth_s]
        last = [sample.rss_bytes / MIB for sample in mine if sample.at >= ended - tenth_s]
        if first and last:
            found[name] = Growth(median(first), median(last))
    return found


def grown(found: Mapping[str, Growth], names: Sequence[str]) -> list[str]:
    """What does not hold: of these names, those that have grown or were not seen in both tenths."""
    missing = [f"{name}: expected samples in the first and in the last tenth, got none" for name in names if name not in found]
    return missing + [
        f"{name}: expected at most {MAX_RATIO} times {found[name].first_mib:.1f} MiB in the last tenth, "
        f"got {found[name].last_mib:.1f} MiB"
        for name in names
        if name in found and not found[name].is_flat
    ]


async def watch_memory(processes: Processes, samples: list[MemorySample]) -> None:
    """Adds samples until it is cancelled."""
    while True:
        samples.extend(_sampled(processes()))
        await asyncio.sleep(EVERY_S)


def _sampled(processes: Mapping[str, Sequence[int]]) -> Iterator[MemorySample]:
    now = time.time()
    for name, pids in processes.items():
        for pid in pids:
            try:
                process = psutil.Process(pid)
                if now - process.create_time() >= STARTING_S:
                    yield MemorySample(now, name, process.memory_info().rss)
            except psutil.Error:  # it has just ended
                continue


def broker_pids(directory: Path, num_brokers: int) -> list[int]:
    """Of the brokers that run now."""
    directories = (directory,) if num_brokers == 1 else node_directories(directory)
    return [state.pid for at in directories if (state := running_state(at)) is not None]
