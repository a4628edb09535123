"""The parts of `make compose-test` that need no engine."""

import json
from pathlib import Path

import pytest

from tests.compose.base_images import mirror_of, write_pip_conf
from tests.compose.figures import memory_by_service, num_bytes
from tests.compose.scenes import KILLED
from topology.stages import STAGES


@pytest.mark.parametrize(("text", "count"), [("0B", 0), ("12.5MiB", 13_107_200), ("1.5GiB", 1_610_612_736), ("3kB", 3000)])
def test_bytes_are_read_as_the_engine_writes_them(text: str, count: int) -> None:
    assert num_bytes(text) == count


def test_what_is_no_number_of_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a number of bytes"):
        num_bytes("--")


def test_the_memory_of_a_service_is_that_of_its_largest_container() -> None:
    stats = [("p-verifier-1", "10MiB"), ("p-verifier-2", "30MiB"), ("p-rollout-worker-1", "1GiB"), ("other-grader-1", "9MiB")]
    lines = [json.dumps({"Name": name, "MemUsage": f"{used} / 4GiB"}) for name, used in stats]
    assert memory_by_service("p", lines) == {"verifier": 30 << 20, "rollout-worker": 1 << 30}


def test_a_container_of_every_stage_and_the_broker_are_killed() -> None:
    assert sorted(KILLED) == sorted([*(stage.name for stage in STAGES), "kafka"])


def test_the_mirror_is_this_machine_s_own() -> None:
    assert mirror_of(["http://m/debian-security/", "http://m/debian/"]) == "http://m/debian/"
    with pytest.raises(AssertionError, match="expected a Debian mirror"):
        mirror_of([])


def test_what_pip_is_told_goes_into_the_build_without_paths_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "pip.conf"
    settings = [":env:.cert='/here/authorities'", ":env:.default-timeout='180'", "global.index-url='one of ours'"]
    write_pip_conf(path, settings, has_ca_bundle=True)
    assert path.read_text().splitlines() == [
        "[global]",
        "default-timeout = 180",
        "index-url = one of ours",
        "cert = /run/secrets/ca_bundle",
    ]
