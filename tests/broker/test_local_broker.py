"""The local broker on the real thing: two starts, SIGKILL, the same data and port."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gagar.broker.address import BrokerState, last_state, running_state
from gagar.broker.jars import cache_for, ensure_jars
from gagar.broker.java import find_java
from gagar.broker.local import broker, start_broker, stop_broker
from gagar.broker.probe import is_answering
from gagar.config import KafkaTable
from gagar.errors import UnavailableError
from gagar.stream.kafka.admin import Admin
from tests.runs import make_run
from topology.topics import TOPICS

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module", autouse=True)
def fetched(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Jars and Java, before anything is timed."""
    try:
        ensure_jars(cache_for(tmp_path_factory.mktemp("jars")))
        find_java()
    except UnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no local Kafka: {error}")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "broker"
    stop_broker(tmp_path / "broker")


def kill(state: BrokerState, directory: Path) -> None:
    os.kill(state.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while running_state(directory) is not None and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.alone
def test_it_starts_in_time_and_once_and_stops(directory: Path) -> None:
    started = time.monotonic()
    state = start_broker(directory)
    assert time.monotonic() - started < 15
    assert is_answering(state.address)
    assert start_broker(directory) == state
    assert stop_broker(directory)
    assert not is_answering(state.address)
    assert not stop_broker(directory)


def test_two_starts_at_once_give_one_broker(directory: Path) -> None:
    states: list[BrokerState] = []
    threads = [threading.Thread(target=lambda: states.append(start_broker(directory))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states[0] == states[1]
    assert is_answering(states[0].address)


def test_after_sigkill_it_has_the_same_data_and_port_and_another_port_where_that_was_taken(
    directory: Path, tmp_path: Path
) -> None:
    run = make_run(tmp_path)
    state = start_broker(directory)
    with Admin(KafkaTable(bootstrap_servers=state.address)) as admin:
        admin.apply(run, TOPICS)
    kill(state, directory)
    again = start_broker(directory)
    assert (again.address, again.pid == state.pid) == (state.address, False)
    with Admin(KafkaTable(bootstrap_servers=again.address)) as admin:
        assert admin.plan(run, TOPICS) == []
    kill(again, directory)
    with socket.create_server(("127.0.0.1", int(again.address.rpartition(":")[2]))):
        moved = start_broker(directory)
        assert moved.address != again.address
        with Admin(KafkaTable(bootstrap_servers=moved.address)) as admin:
            assert admin.plan(run, TOPICS) == []


def test_a_broker_of_a_with_ends_when_its_parent_is_killed(directory: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom gagar.broker.local import broker\n"
        "with broker(Path(sys.argv[1])):\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", script, str(directory)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        state = running_state(directory)
        parent.kill()
    assert state is not None
    with broker(directory) as again:
        assert again.pid != state.pid
        assert is_answering(again.address)
    assert running_state(directory) is None


def test_a_broker_that_was_started_for_good_outlives_a_with(directory: Path) -> None:
    state = start_broker(directory)
    with broker(directory) as same:
        assert same == state
    assert running_state(directory) == state


def test_storage_that_cannot_be_used_is_a_clear_error(directory: Path) -> None:
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=77\n")
    with pytest.raises(UnavailableError, match=r"broker in .*: expected to start, got its end: .*node.id.*; see .*broker.log"):
        start_broker(directory)
    assert last_state(directory) is not None
    assert running_state(directory) is None


STRANGE = ["ren\u00e9", "a b", "a\\u0062\\b", "#x", "a=b", "a:b", "a,b", "%p%h", "\U0001f40d", "-n", "$HOME 'x'"]


def test_any_directory_that_a_file_system_takes_holds_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One path with all of it, in the locale that knows ASCII only."""
    monkeypatch.setenv("LANG", "C")
    monkeypatch.delenv("LC_ALL", raising=False)
    run_dir = tmp_path.joinpath(*STRANGE)
    directory = run_dir / "broker"
    try:
        state = start_broker(directory)
        with Admin(KafkaTable(bootstrap_servers=state.address)) as admin:
            admin.apply(make_run(tmp_path), TOPICS)
    finally:
        stop_broker(directory)
    assert any(path.name.startswith("test.verdicts-") for path in (directory / "data").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == STRANGE[:1]
    assert [path.name for path in run_dir.parent.iterdir()] == STRANGE[-1:]
    assert start_broker(directory).pid != state.pid
    assert stop_broker(directory)


def test_a_broker_that_takes_too_long_is_still_starting_and_goes_on(directory: Path) -> None:
    with pytest.raises(
        UnavailableError, match=r"within 0.01 s, got one that is still starting: .*; try again, set kafka.start_"
    ):
        start_broker(directory, timeout_s=0.01)
    assert is_answering(start_broker(directory).address)


def test_a_home_that_cannot_be_written_does_not_keep_the_broker_from_running_and_the_second_start_has_its_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jars then lie below `run.dir`, and so does the archive of classes; here they are there already, so that nothing is
    fetched."""
    cache = cache_for(tmp_path)
    spare = tmp_path / "a:b" / "cache"
    spare.mkdir(parents=True)
    for jar in ensure_jars(cache):
        (spare / jar.name).symlink_to(jar)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    for name, has_archive in (("first", False), ("second", True)):
        directory = tmp_path / "a:b" / name
        try:
            state = start_broker(directory)
            assert is_answering(state.address)
            assert (str(spare / "classes-") in Path(f"/proc/{state.pid}/maps").read_text()) is has_archive
        finally:
            stop_broker(directory)
