"""Apache Kafka's jars: a committed list of coordinates and sha256, fetched once per user and verified at every start.

In: `gagar/data/kafka/jars.txt`. Out: paths of files whose bytes are those of the list. Kept: the cache, see `cache_for`.
A download is written under a temporary name and renamed when its sum is right, under a lock: two starts at once are safe,
and nothing half written is ever used. `GAGAR_MAVEN_REPOSITORY` replaces the repository that the library carries.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from gagar.errors import UnavailableError
from gagar.processes.locks import file_lock

NUM_THREADS = 8
NUM_ATTEMPTS = 3
REQUEST_TIMEOUT_S = 30.0
LOCK_TIMEOUT_S = 600.0
LIST_FILE = Path(__file__).parent.parent / "data" / "kafka" / "jars.txt"

Fetch = Callable[[str, Path], None]
"""Writes the jar of a coordinate to a path; raises OSError."""


class Jar(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. Example coordinate: `org.apache.kafka:kafka_2.13:4.2.2`."""

    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def listed_jars() -> list[Jar]:
    """The committed list."""
    lines = (line.split() for line in LIST_FILE.read_text(encoding="ascii").splitlines() if line and not line.startswith("#"))
    return [Jar(sha256=digest, coordinate=coordinate) for digest, coordinate in lines]


def cache_dir() -> Path | None:
    """`$XDG_CACHE_HOME/gagar/kafka`, or below `~/.cache`; none if there is no home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "gagar" / "kafka"
    except RuntimeError:
        return None


def cache_for(spare: Path) -> Path:
    """The user's cache, if it can be written or holds all jars, as images of containers have it; else `spare`."""
    directory = cache_dir()
    if directory is None:
        return spare
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return spare
    return directory if _is_writable(directory) or not _broken(directory, listed_jars()) else spare


def ensure_jars(directory: Path, jars: Sequence[Jar] | None = None, fetch: Fetch | None = None) -> list[Path]:
    """Paths of all jars, verified; fetches into `directory` what is missing or broken. Raises UnavailableError if one cannot
    be had."""
    jars = listed_jars() if jars is None else jars
    paths = [directory / jar.file_name for jar in jars]
    if directory.exists() and not _is_writable(directory) and not _broken(directory, jars):
        return paths
    with file_lock(directory / ".lock", timeout_s=LOCK_TIMEOUT_S, advice="another gagar fetches Kafka; wait for it or end it"):
        for leftover in directory.glob("*.part"):
            leftover.unlink()
        broken = _broken(directory, jars)
        if broken:
            fetch = maven_fetch() if fetch is None else fetch
            with ThreadPoolExecutor(NUM_THREADS) as pool:
                list(pool.map(lambda jar: _fetch_verified(jar, directory, fetch), broken))
    return paths


def _is_writable(directory: Path) -> bool:
    return os.access(directory, os.W_OK | os.X_OK)


def _broken(directory: Path, jars: Sequence[Jar]) -> list[Jar]:
    """Those that are not there as they should be."""
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        is_good = pool.map(lambda jar: _matches(directory / jar.file_name, jar), jars)
        return [jar for jar, good in zip(jars, is_good, strict=True) if not good]


def _matches(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _fetch_verified(jar: Jar, directory: Path, fetch: Fetch) -> None:
    """Fetches one jar, again if it came broken."""
    part = directory / f"{jar.file_name}.part"
    fault = ""
    for _ in range(NUM_ATTEMPTS):
        try:
            fetch(jar.coordinate, part)
        except OSError as error:
            fault = f"{type(error).__name__}: {error}"
        else:
            if _matches(part, jar):
                part.replace(directory / jar.file_name)
                return
            fault = f"{part.stat().st_size if part.exists() else 0} bytes with another sum"
        part.unlink(missing_ok=True)
    raise UnavailableError(
        f"jar {jar.coordinate}: expected sha256 {jar.sha256[:12]}..., got {fault} in {NUM_ATTEMPTS} attempts; "
        "check the network, set GAGAR_MAVEN_REPOSITORY to a mirror, or use an existing cluster by kafka.bootstrap_servers"
    )


def maven_fetch() -> Fetch:
    """Downloads from the Maven repository; raises UnavailableError if the library is not installed.

    The library's own `download` knows no time-out and prints, so only its address and its requests are used.
    """
    try:
        from maven_artifact import Artifact, Downloader
    except ImportError:
        raise UnavailableError(
            "maven-artifact: expected the package, got none; install gagar-rl[local], or set kafka.bootstrap_servers"
        ) from None
    base = os.environ.get("GAGAR_MAVEN_REPOSITORY")
    downloader = Downloader(base=base) if base else Downloader()

    def fetch(coordinate: str, into: Path) -> None:
        url = downloader.resolver.uri_for_artifact(Artifact.parse(coordinate))
        with (
            downloader.requestor.request(url, None, stream=True, timeout=REQUEST_TIMEOUT_S) as response,
            into.open("wb") as file,
        ):
            for chunk in response.iter_content(chunk_size=1 << 16):
                file.write(chunk)

    return fetch
