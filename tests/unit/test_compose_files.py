"""The compose files and the Dockerfile as text: a service for every stage, within walls and limits."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gagar.broker.jars import listed_jars
from gagar.config import DRAIN_S
from gagar.processes.forced_end import END_S
from topology.stages import STAGES

ROOT = Path(__file__).parents[2]
NAMES = [stage.name for stage in STAGES]
SANDBOXED = ("rollout-worker", "verifier")
WITH_TORCH = ("rollout-worker", "learner")
LISTENING = {
    "process.roles",
    "node.id",
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "log.dirs",
}
"""Keys of the local broker that say where it is."""


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Knows the tag by which an override replaces a list of the file below it."""


Loader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((ROOT / name).read_text(encoding="utf-8"), Loader)
    return found


COMPOSE, CLUSTER = read("compose.yaml"), read("compose.cluster.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if name not in ("kafka", "ui")}


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_every_stage_is_a_service_and_nothing_else_is_but_broker_topics_audit_and_ui() -> None:
    assert sorted(SERVICES) == sorted([*NAMES, "kafka", "topics", "audit", "ui"])
    for name in NAMES:
        assert SERVICES[name]["command"] == f"run {name} --run run.toml ${{GAGAR_SET:-}}"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_walls_and_limits(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert any(mount.startswith("/tmp:") for mount in service["tmpfs"])
    assert "privileged" not in service
    assert "cap_add" not in service
    assert service["restart"]


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_ours_is_no_root_and_has_time_to_stop(name: str) -> None:
    service = OURS[name]
    assert service["user"] == "10001:10001"
    assert seconds(service["stop_grace_period"]) > DRAIN_S + END_S
    assert service["networks"] == ["stream"]
    assert COMPOSE["networks"]["stream"] == {"internal": True}


def test_only_what_has_a_sandbox_goes_without_the_filters_that_forbid_one() -> None:
    loose = [name for name, service in SERVICES.items() if any("unconfined" in option for option in service["security_opt"])]
    assert sorted(loose) == sorted(SANDBOXED)


def test_no_service_has_the_engine_s_socket_and_ports_are_on_the_loopback_interface() -> None:
    for text in ("compose.yaml", "compose.cluster.yaml"):
        assert "docker.sock" not in (ROOT / text).read_text()
        ports = [port for service in read(text)["services"].values() for port in service.get("ports", [])]
        assert ports
        assert all(port.startswith("127.0.0.1:") for port in ports)


def test_what_is_scaled_has_no_name_and_no_port_of_its_own() -> None:
    for name in NAMES:
        assert not {"container_name", "ports", "hostname"} & SERVICES[name].keys()


def test_services_start_by_health_and_by_success() -> None:
    assert SERVICES["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    topics = {"topics": {"condition": "service_completed_successfully"}}
    for name in NAMES:
        assert SERVICES[name]["depends_on"] == topics
    assert SERVICES["audit"]["depends_on"] == topics | {name: {"condition": "service_started"} for name in NAMES}
    assert SERVICES["kafka"]["healthcheck"]["test"]
    for name in ("topics", "audit"):
        assert SERVICES[name]["restart"] == "no"
        assert SERVICES[name]["healthcheck"] == {"disable": True}
    assert all("healthcheck" not in SERVICES[name] for name in NAMES)  # the image's
    assert not re.search(r"\bsleep\b", (ROOT / "compose.yaml").read_text())


def test_the_ui_is_a_profile() -> None:
    assert [name for name, service in SERVICES.items() if "profiles" in service] == ["ui"]


def test_images_fit_what_the_stages_load() -> None:
    for name, service in OURS.items():
        kind = "torch" if name in WITH_TORCH else "light"
        assert service["build"] == {"context": ".", "target": kind}
        assert service["image"].startswith(f"gagar-{kind}:")


def test_the_tag_of_the_images_is_the_project_s_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {service["image"].partition(":")[2] for service in OURS.values()} == {f"${{GAGAR_TAG:-{version}}}"}
    assert f"ARG VERSION={version}\n" in (ROOT / "Dockerfile").read_text()


def test_the_broker_is_the_one_that_the_jars_are_of_with_the_settings_of_the_local_one() -> None:
    [version] = {jar.coordinate.split(":")[2] for jar in listed_jars() if jar.coordinate.split(":")[1] == "kafka_2.13"}
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{version}"
    lines = (ROOT / "gagar/data/kafka/server.properties").read_text().splitlines()
    local = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    given = {key: str(value) for key, value in SERVICES["kafka"]["environment"].items()}
    wanted = {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in local.items() if key not in LISTENING}
    assert {key: given.get(key) for key in wanted} == wanted


def test_three_brokers_keep_three_replicas_and_every_stage_knows_them() -> None:
    services = CLUSTER["services"]
    brokers = ("kafka", "kafka-2", "kafka-3")
    for name in brokers:
        settings = services[name]["environment"]
        assert settings["KAFKA_DEFAULT_REPLICATION_FACTOR"] == "3"
        assert settings["KAFKA_MIN_INSYNC_REPLICAS"] == "2"
        assert all(value == "3" for key, value in settings.items() if key.endswith("TOPIC_REPLICATION_FACTOR"))
        assert all(value == "2" for key, value in settings.items() if key.endswith("MIN_ISR"))
    for number, name in enumerate(brokers[1:], start=2):
        assert services[name]["environment"]["KAFKA_NODE_ID"] == number
        assert services[name]["extends"] == {"file": "compose.yaml", "service": "kafka"}
        assert services[name]["volumes"] == [f"{name}:/var/lib/kafka/data"]
    for name, service in OURS.items():
        before, _, after = service["command"].partition(" ${GAGAR_SET")
        assert services[name]["command"] == f"{before} --set kafka.replication_factor=3 ${{GAGAR_SET{after}"
        servers = services[name]["environment"]["GAGAR_KAFKA_BOOTSTRAP_SERVERS"]
        assert all(f"{broker}:9092" in servers for broker in brokers)


def test_the_images_run_as_the_user_of_the_compose_file_with_the_health_check() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert "\nUSER 10001:10001\n" in text
    assert re.search(r'HEALTHCHECK .* CMD \["python", "-P", "-m", "gagar.cli.main", "health"\]', text)
    installs = re.findall(r"pip[^\n]* install [^\n]*", text)
    assert installs
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)


@pytest.mark.parametrize("name", ["light", "torch", "build"])
def test_the_images_packages_are_those_of_the_tests(name: str) -> None:
    def pins(file: str) -> set[str]:
        text = (ROOT / "requirements" / file).read_text()
        return set(re.findall(r"^[A-Za-z0-9_.-]+==[^ ]+", text, re.MULTILINE))

    assert pins(f"{name}.txt") <= pins("dev.txt")


def test_the_build_sees_nothing_but_what_it_takes() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    sources = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = set(re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    names = {word.partition("/")[0] for words in copied for word in words.split()}
    assert names == sources
