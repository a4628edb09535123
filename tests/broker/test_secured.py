"""A cluster that wants TLS, a login and permissions: a run works there, and what is not right is told at once in one line."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from msgspec import structs

from gagar.broker.meeting import check_cluster
from gagar.broker.security import SASL_PASSWORD
from gagar.config import KafkaTable
from gagar.errors import EXIT_REFUSED, ConfigError, UnavailableError
from gagar.stream.handlers import Transform
from gagar.stream.kafka.admin import Admin
from gagar.stream.kafka.client import KafkaTransport
from tests.broker.secured import PASSWORD, PREFIX, USER, SecuredBroker, secured_broker, token
from tests.broker.stages import ROOT
from tests.builders import make_request
from tests.contract.world import (
    REQUESTS,
    TRAJECTORIES,
    KafkaWorld,
    Process,
    make_run,
    make_stage,
    make_trajectory,
    read,
    write,
)
from tests.runs import write_run

pytestmark = pytest.mark.broker

TRANSFORM = Transform(lambda request: [make_trajectory(request)])
NO_NAME = {"sasl_username": None, "sasl_password_file": None}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker for the tests of this file, which one worker runs."""
    try:
        with secured_broker(tmp_path_factory.mktemp("secured") / "broker") as broker:
            yield broker
    except (UnavailableError, FileNotFoundError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Kafka, or no openssl: {error}")


def ways_in(broker: SecuredBroker) -> dict[str, KafkaTable]:
    """Every way to meet the broker that is right."""
    no_name: dict[str, Any] = NO_NAME
    certificate = {"ssl_certfile": broker.path(f"{USER}.pem"), "ssl_keyfile": broker.path(f"{USER}.key")}
    return {
        "SCRAM-SHA-512": broker.kafka(),
        "SCRAM-SHA-256": broker.kafka(sasl_mechanism="SCRAM-SHA-256"),
        "PLAIN": broker.kafka(sasl_mechanism="PLAIN"),
        "PLAIN without TLS": broker.kafka("SASL_PLAINTEXT", sasl_mechanism="PLAIN"),
        "OAUTHBEARER": broker.kafka(sasl_mechanism="OAUTHBEARER", sasl_token_file=broker.path("token"), **no_name),
        "certificate": broker.kafka("SSL", **certificate),
    }


@pytest.mark.parametrize("way", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "PLAIN without TLS", "OAUTHBEARER", "certificate"])
async def test_a_stage_works_by_every_way_in(secured: SecuredBroker, way: str) -> None:
    world = SecuredWorld(ways_in(secured)[way])
    await asyncio.to_thread(world.create_topics)
    await write(world, [make_request(f"t-{number:06}") for number in range(8)])
    async with Process(world, make_stage("transform"), TRANSFORM) as process:
        await process.until_finished(8)
    assert len(await read(world, TRAJECTORIES)) == 8


def test_an_encrypted_key_is_opened_by_its_password(secured: SecuredBroker, tmp_path: Path) -> None:
    fields = {"ssl_certfile": secured.path(f"{USER}.pem"), "ssl_keyfile": secured.path("encrypted.key")}
    check_cluster(secured.kafka("SSL", ssl_password_file=secured.path("password"), **fields), 5.0)
    with pytest.raises(ConfigError, match=r"kafka.ssl_password_file: .* got none; name one, or set GAGAR_KAFKA_SSL_PASSWORD"):
        check_cluster(secured.kafka("SSL", **fields), 5.0)
    (tmp_path / "wrong").write_text("wrong")
    with pytest.raises(
        ConfigError, match=r"kafka.ssl_keyfile: expected the key of .*; mend the two files, or the password"
    ) as caught:
        check_cluster(secured.kafka("SSL", ssl_password_file=str(tmp_path / "wrong"), **fields), 5.0)
    assert PASSWORD not in str(caught.value)


class SecuredWorld(KafkaWorld):
    """Topics on a broker that is met in a given way, under a name that its user may use."""

    def __init__(self, kafka: KafkaTable) -> None:
        super().__init__(kafka.bootstrap_servers)
        self.kafka = kafka
        self.name = f"{PREFIX}-{self.name}"


@pytest.mark.parametrize(
    ("protocol", "listener", "fields", "message"),
    [
        ("PLAINTEXT", "SASL_SSL", {}, "security_protocol: expected SSL or SASL_SSL, since .* speaks TLS, got PLAINTEXT"),
        (
            "SASL_PLAINTEXT",
            "SASL_SSL",
            {},
            "security_protocol: expected SSL or SASL_SSL, since .* TLS, got SASL_PLAINTEXT",
        ),
        (
            "SASL_SSL",
            "INTERNAL",
            {},
            "security_protocol: expected PLAINTEXT or SASL_PLAINTEXT, since .* plain text, got",
        ),
        (
            "SASL_PLAINTEXT",
            "INTERNAL",
            {},
            "security_protocol: expected PLAINTEXT, since .* no login, got SASL_PLAINTEXT",
        ),
        (
            "PLAINTEXT",
            "SASL_PLAINTEXT",
            {},
            "security_protocol: expected SASL_PLAINTEXT, since .* by PLAIN, got PLAINTEXT",
        ),
        ("SSL", "SASL_SSL", {}, "security_protocol: expected SASL_SSL, since .* wants a login by .*SCRAM-SHA-512.*, got SSL"),
        ("SSL", "SSL", {}, "ssl_certfile: expected a certificate that the broker at .* takes, got its alert .*CERTIFICATE"),
        (
            "SASL_SSL",
            "",
            {"ssl_cafile": None},
            "ssl_cafile: expected authorities .*, got: unable to get local issuer",
        ),
        ("SASL_PLAINTEXT", "", {}, r"sasl_mechanism: expected one that .* takes \(PLAIN\), got SCRAM-SHA-512"),
        (
            "SASL_SSL",
            "",
            {"sasl_username": "nobody"},
            "sasl_username: expected a name and a password .* no to 'nobody': .*",
        ),
        ("SASL_SSL", "", {"sasl_mechanism": "PLAIN", "password": "x"}, "sasl_username: .* or the password in .*/password"),
        ("SASL_SSL", "", {"password": "x"}, "sasl_username: .* invalid credentials .*; mend the name, or the password in .*"),
        ("SASL_SSL", "", {"sasl_mechanism": "OAUTHBEARER", "token": token(USER, -60)}, "sasl_token_file: .*; renew that in .*"),
    ],
)
async def test_what_does_not_fit_is_told_by_every_client(
    secured: SecuredBroker, tmp_path: Path, protocol: Any, listener: str, fields: dict[str, Any], message: str
) -> None:
    fields = dict(fields)
    for name in ("password", "token"):
        if text := fields.pop(name, ""):
            (tmp_path / name).write_text(text)
            fields |= NO_NAME if name == "token" else {}
            fields |= {f"sasl_{name}_file": str(tmp_path / name)}
    kafka = secured.kafka(protocol, listener, **fields)
    with pytest.raises(ConfigError, match=rf"^kafka\.{message}") as told:
        await asyncio.to_thread(Admin, kafka, 1.0)
    with pytest.raises(ConfigError, match=rf"^kafka\.{message}"):
        await KafkaTransport(kafka, "any").open()
    assert PASSWORD not in str(told.value)
    assert "\n" not in str(told.value)


def test_a_broker_is_named_as_its_certificate_does(secured: SecuredBroker) -> None:
    address = secured.addresses["SASL_SSL"].replace("127.0.0.1", "localhost")
    with pytest.raises(ConfigError, match=r"kafka.ssl_cafile: .* got: Hostname mismatch.*; name .* the broker as that .* does"):
        Admin(secured.kafka(bootstrap_servers=address), 1.0)


def test_a_run_without_permission_has_no_topics(secured: SecuredBroker) -> None:
    with (
        Admin(secured.kafka()) as admin,
        pytest.raises(ConfigError, match=r"authorised, got .*TopicAuthorizationFailed.*; give .* the permissions"),
    ):
        admin.apply(make_run("forbidden"), [REQUESTS])


async def test_a_topic_that_may_not_be_seen_is_told_from_one_that_is_missing(secured: SecuredBroker) -> None:
    transport = KafkaTransport(secured.kafka(), "forbidden")
    await transport.open()
    try:
        with pytest.raises(ConfigError, match=r"topics rollout-requests: expected permission, got .*; let the .* DESCRIBE"):
            await transport.describe([REQUESTS])
    finally:
        await transport.close()
    transport = KafkaTransport(secured.kafka(), f"{PREFIX}-not-there")
    await transport.open()
    try:
        assert await transport.describe([REQUESTS]) == {}
    finally:
        await transport.close()


@pytest.mark.parametrize(
    ("kind", "operation", "name", "message"),
    [
        (
            "TOPIC",
            "READ",
            ".rollout-requests",
            "expected permission, got .*rollout-requests.*; let .* READ, WRITE",
        ),
        ("TOPIC", "WRITE", ".trajectories", "expected permission, got .*; let .* READ, WRITE and DESCRIBE on topics"),
        ("GROUP", "READ", ".under-test", "expected permission, got .*; let .* READ on consumer groups"),
        (
            "TRANSACTIONAL_ID",
            "WRITE",
            ".under-test.0",
            "expected permission, got .*; let .* on transactional ids",
        ),
    ],
)
async def test_a_stage_without_a_permission_ends(
    secured: SecuredBroker, kind: str, operation: str, name: str, message: str
) -> None:
    world = SecuredWorld(secured.kafka())
    await asyncio.to_thread(world.create_topics)
    await write(world, [make_request(f"t-{number:06}") for number in range(8)])
    await asyncio.to_thread(secured.deny, kind, operation, world.name + name)
    async with Process(world, make_stage("transform"), TRANSFORM) as process:
        with pytest.raises(ConfigError, match=message):
            await process.ended()


@pytest.mark.parametrize(
    ("kind", "operation", "name", "message"),
    [
        ("TOPIC", "READ", ".rollout-requests", "expected permission, got .*; let .* READ, WRITE"),
        ("TOPIC", "WRITE", ".trajectories", "expected permission, got .*; let .* READ, WRITE and DESCRIBE on topics"),
        ("GROUP", "READ", ".under-test", "expected permission, got .*; let .* READ on consumer groups"),
        ("TRANSACTIONAL_ID", "WRITE", ".under-test.0", "expected permission, got .*; let .* on transactional ids"),
    ],
)
async def test_a_stage_from_which_a_permission_is_taken_ends(
    secured: SecuredBroker, kind: str, operation: str, name: str, message: str
) -> None:
    world = SecuredWorld(secured.kafka())
    await asyncio.to_thread(world.create_topics)
    await write(world, [make_request(f"t-{number:06}") for number in range(8)])
    async with Process(world, make_stage("transform"), TRANSFORM) as process:
        await process.until_finished(8)
        await asyncio.to_thread(secured.deny, kind, operation, world.name + name)
        await write(world, [make_request(f"t-{number:06}") for number in range(8, 24)])
        with pytest.raises(ConfigError, match=message):
            await process.ended()


def gagar(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A command from its start to its end."""
    command = [sys.executable, "-P", "-m", "gagar.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def write_secured_run(directory: Path, kafka: KafkaTable) -> Path:
    """A run file for the cluster, with its password left to the environment."""
    given = {key: value for key, value in structs.asdict(kafka).items() if value and key != "sasl_password_file"}
    return write_run(directory, tomlkit.dumps({"kafka": given}))


def until_logged(process: "subprocess.Popen[str]", words: str) -> list[str]:
    """The lines on stderr up to the one that holds the words."""
    assert process.stderr is not None
    lines = list[str]()
    while line := process.stderr.readline():
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError("".join(lines))


def test_a_run_works_from_its_topics_to_its_audit_and_leaves_no_secret(secured: SecuredBroker, tmp_path: Path) -> None:
    run_file = write_secured_run(tmp_path, secured.kafka())
    options = ("--run", str(run_file), "--set", f"run.name={PREFIX}-cli")
    secret = {SASL_PASSWORD: PASSWORD}
    ended = [gagar("topics", "plan", *options, **secret), gagar("topics", "apply", *options, **secret)]
    ended.append(gagar("topics", "check", *options, **secret))
    assert [process.returncode for process in ended] == [0, 0, 0], ended
    assert "create  topic allowed-cli.verdicts" in ended[0].stdout
    command = [sys.executable, "-P", "-m", "gagar.cli.main", "run", "gatherer", *options]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, **secret}) as stage:
        lines = until_logged(stage, "partitions assigned stage=gatherer")
        stage.send_signal(signal.SIGTERM)
        lines += stage.communicate(timeout=60)[1]
    assert stage.returncode == 0, lines
    ended.append(gagar("audit", "--json", *options, **secret))
    assert ended[-1].returncode == 0, ended[-1]
    assert json.loads(ended[-1].stdout)["is_clean"]
    told = "".join([*lines, *(process.stdout + process.stderr for process in ended)])
    files = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert 'sasl_username = "me"' in (tmp_path / ".gagar" / "runs" / f"{PREFIX}-cli" / "run.toml").read_text()
    assert not [text for text in [told, *files] if PASSWORD in text]


@pytest.mark.parametrize(
    ("name", "override", "password", "message"),
    [
        (PREFIX, "kafka.sasl_username=nobody", PASSWORD, "kafka.sasl_username: expected a name and a password that"),
        (PREFIX, "kafka.sasl_mechanism=PLAIN", "wrong", "kafka.sasl_username: .* or the password in GAGAR_KAFKA_SASL_PASSWORD"),
        (PREFIX, "kafka.sasl_mechanism=PLAIN", "", "kafka.sasl_password_file: .* name one, or set GAGAR_KAFKA_SASL_PASSWORD"),
        ("forbidden", "kafka.sasl_mechanism=PLAIN", PASSWORD, "topics .*: expected permission, got .*; let the user of"),
    ],
)
def test_a_stage_that_cannot_get_in_ends_with_2_and_one_line(
    secured: SecuredBroker, tmp_path: Path, name: str, override: str, password: str, message: str
) -> None:
    run_file = write_secured_run(tmp_path, secured.kafka())
    options = ("--run", str(run_file), "--set", f"run.name={name}", "--set", override)
    ended = gagar("run", "gatherer", *options, **{SASL_PASSWORD: password})
    assert ended.returncode == EXIT_REFUSED, ended
    [told] = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert re.search(message, told), told
