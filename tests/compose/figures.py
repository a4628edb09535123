"""What the services cost: sizes of images, memory of containers."""

import json
import re
from collections import Counter
from collections.abc import Iterable

from tests.compose.engine import docker

UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def num_bytes(text: str) -> int:
    """As the engine writes it. Example: `12.5MiB`."""
    match = re.fullmatch(r"([0-9.]+)\s*([A-Za-z]+)", text.strip())
    if match is None:
        raise ValueError(f"expected a number of bytes such as 12.5MiB, got {text!r}")
    return int(float(match[1]) * UNITS[match[2]])


def memory_by_service(project: str, lines: Iterable[str]) -> dict[str, int]:
    """Bytes of each service's largest container, by the lines of `docker stats --format json`. Example: `project-grader-1`."""
    found: dict[str, int] = {}
    for line in lines:
        stats = json.loads(line)
        if match := re.fullmatch(rf"{re.escape(project)}-(.+)-[0-9]+", stats["Name"]):
            used = num_bytes(stats["MemUsage"].partition("/")[0])
            found[match[1]] = max(found.get(match[1], 0), used)
    return found


class Memory:
    """The most that each service took."""

    def __init__(self, project: str) -> None:
        self.peak: Counter[str] = Counter()
        self._project = project

    def sample(self) -> None:
        lines = docker("stats", "--no-stream", "--format", "json").splitlines()
        for service, used in memory_by_service(self._project, lines).items():
            self.peak[service] = max(self.peak[service], used)


def image_bytes(tag: str) -> int:
    return int(docker("image", "inspect", "--format", "{{.Size}}", tag))


def mib(count: float) -> str:
    return f"{count / (1 << 20):.0f} MiB"
