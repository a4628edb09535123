"""Where the broker is, without asking it."""

import os
import socket
from pathlib import Path

import msgspec
import pytest

from gagar.broker.address import (
    STATE_FILE,
    BrokerState,
    broker_command,
    broker_dir,
    cluster_now,
    last_state,
    running_state,
)
from gagar.broker.local import cluster_of, server_properties, start_broker, stop_broker
from gagar.broker.probe import PORTS, free_ports, is_answering, is_free
from gagar.errors import ConfigError, UnavailableError
from gagar.processes.identity import identity
from tests.runs import make_run
from topology.topics import TOPICS


def write_state(directory: Path, pid: int, born: str) -> BrokerState:
    state = BrokerState(address="127.0.0.1:29092", controller_address="127.0.0.1:29093", pid=pid, identity=born)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / STATE_FILE).write_bytes(msgspec.json.encode(state))
    return state


def test_a_cluster_of_the_run_file_is_taken_as_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path, "kafka-1:9092, kafka-2:9092")
    assert cluster_now(run) == run.kafka
    assert run.kafka.servers == ["kafka-1:9092", "kafka-2:9092"]


def test_a_cluster_that_does_not_answer_ends_a_run_before_it_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gagar.broker.local.ANSWER_TIMEOUT_S", 0.0)
    message = r"kafka.bootstrap_servers: expected a Kafka cluster that answers at 127.0.0.1:1, got none; start it"
    with pytest.raises(UnavailableError, match=message), cluster_of(make_run(tmp_path, "127.0.0.1:1")):
        raise AssertionError("got in")
    assert list(tmp_path.iterdir()) == []


def test_a_stop_where_nothing_was_started_leaves_nothing(tmp_path: Path) -> None:
    assert not stop_broker(tmp_path / ".gagar" / "broker")
    assert list(tmp_path.iterdir()) == []


def test_without_a_broker_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(
        UnavailableError,
        match=r"kafka.bootstrap_servers: expected a running broker .*`gagar broker start --set run.dir=/.*/.gagar`",
    ):
        cluster_now(make_run(tmp_path))


def test_a_hint_is_a_whole_command_even_for_a_strange_directory() -> None:
    assert broker_command("stop", Path("/a b/x/broker")) == "`gagar broker stop --set 'run.dir=/a b/x'`"


def test_a_directory_that_java_cannot_name_is_refused_by_its_byte(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xffb/broker"))
    with pytest.raises(ConfigError, match=r"run.dir .*: expected a path in UTF-8, got the byte b'.xff'"):
        start_broker(directory)
    assert list(tmp_path.iterdir()) == []


def test_a_running_broker_is_found(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_state(broker_dir(run), os.getpid(), identity(os.getpid()) or "")
    assert cluster_now(run).bootstrap_servers == "127.0.0.1:29092"


def test_a_recycled_pid_is_not_taken_for_the_broker(tmp_path: Path) -> None:
    state = write_state(tmp_path, os.getpid(), "another boot:1")
    assert last_state(tmp_path) == state
    assert running_state(tmp_path) is None


def test_a_state_file_that_was_cut_short_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_bytes(b'{"address": "127.')
    assert last_state(tmp_path) is None


def test_ports_that_are_free_are_kept_and_others_are_replaced() -> None:
    first = free_ports(())
    assert len(set(first)) == 2
    assert all(port in PORTS for port in first)
    assert free_ports((first[0], first[1])) == first
    with socket.create_server(("127.0.0.1", first[0])):
        assert not is_free(first[0])
        assert first[0] not in free_ports((first[0], first[1]))


def test_an_open_port_alone_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_answering(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=0.05)
    assert not is_answering("127.0.0.1:1", timeout_s=0.05)


def properties(port: int, controller_port: int) -> dict[str, str]:
    lines = (line.partition("=") for line in server_properties(port, controller_port).splitlines() if not line.startswith("#"))
    return {key: value for key, _, value in lines if key}


def test_the_largest_record_fits_into_messages_and_segments() -> None:
    largest = max(topic.max_record_bytes for topic in TOPICS)
    settings = properties(20001, 20002)
    message = int(settings["message.max.bytes"])
    assert largest < message < int(settings["log.segment.bytes"])
    assert message <= int(settings["replica.fetch.max.bytes"])
    assert message < int(settings["socket.request.max.bytes"])


def test_properties_name_the_listeners() -> None:
    listeners = "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    settings = properties(20001, 20002)
    assert settings["listeners"] == settings["advertised.listeners"] == listeners
    assert settings["controller.quorum.bootstrap.servers"] == "127.0.0.1:20002"
