"""What tests of several folders share: a real Apache Kafka for the session, and how hypothesis behaves."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from gagar.errors import UnavailableError

# Two threads that spin against other processes on two cores make a test of a second one of a minute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A first example may import half of torch, and the machines of CI are shared: no example fails for the time it takes.
hypothesis.settings.register_profile("gagar", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=300)


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "processes die twice at every point, not at every fourth; properties are tried on three times as many examples"
    parser.addoption("--thorough", action="store_true", help=what)
    what = "only tests that need no broker, no sandbox, no model and no process beside them"
    parser.addoption("--quick", action="store_true", help=what)


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("thorough" if config.getoption("--thorough") else "gagar")
    if config.getoption("--quick"):
        config.option.markexpr = "not (broker or sandbox or slow)"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A quick run does not even import what is slow as a whole, and so no torch; a run of what must be alone, no other file."""
    is_quick = config.getoption("--quick")
    is_alone = config.option.markexpr == "alone"
    if not (is_quick or is_alone) or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    marks = re.search(r"^pytestmark = .*", text, re.MULTILINE)
    is_slow = marks is not None and "pytest.mark.slow" in marks[0]
    return True if (is_quick and is_slow) or (is_alone and "pytest.mark.alone" not in text) else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.spreading import make_scheduler

    return make_scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait come first, so that no worker waits alone in the end."""
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in ("broker", "sandbox", "slow")))


@pytest.fixture
def double_every(request: pytest.FixtureRequest) -> int:
    """Of the points at which a process dies once, which ones it dies at twice."""
    return 1 if request.config.getoption("--thorough") else 4


@pytest.fixture(scope="session")
def kafka_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the local broker that all workers of a session share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "kafka"


@pytest.fixture(scope="session")
def kafka_servers(kafka_directory: Path) -> Iterator[str]:
    """Address of a local broker for all workers of a session; it ends with the last of them, even if that is killed.

    Where there can be none, tests skip, and fail in CI. Each test takes a run name of its own."""
    from gagar.broker.local import broker

    try:
        with broker(kafka_directory) as state:
            yield state.address
    except UnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no local Kafka: {error}")
