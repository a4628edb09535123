"""[kafka] for clusters that want TLS and a login: what fits together, and that secrets stay where they are."""

import os
import ssl
from pathlib import Path

import pytest
from msgspec import structs

from gagar.broker import security
from gagar.broker.address import cluster_now
from gagar.broker.security import SASL_PASSWORD, Secret, client_arguments, read_token, tls_context
from gagar.cli.saved_run import save_run, saved_run
from gagar.config import KafkaTable, load_run
from gagar.errors import ConfigError
from tests.runs import write_run
from topology.settings import differences, settings_of

SASL_SSL = 'security_protocol="SASL_SSL"\n'
SCRAM = SASL_SSL + 'sasl_mechanism="SCRAM-SHA-512"\nsasl_username="me"\n'
TOKEN = SASL_SSL + 'sasl_mechanism="OAUTHBEARER"\n'


def kafka_of(directory: Path, lines: str) -> KafkaTable:
    return load_run(write_run(directory, f'[kafka]\nbootstrap_servers="k:9093"\n{lines}')).kafka


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('security_protocol="TLS"', "security_protocol: expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, got 'TLS'"),
        (SASL_SSL, "sasl_mechanism: expected one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER with .* SASL_SSL, got ''"),
        (SASL_SSL + 'sasl_mechanism="GSSAPI"', "sasl_mechanism: expected one of .*, got 'GSSAPI'"),
        (SASL_SSL + 'sasl_mechanism="PLAIN"', "sasl_username: expected a name with .* and sasl_mechanism PLAIN, got ''"),
        ('sasl_mechanism="PLAIN"', "sasl_mechanism: expected no value with security_protocol PLAINTEXT, got 'PLAIN'"),
        ('sasl_username="me"', "sasl_username: expected no value with security_protocol PLAINTEXT, got 'me'"),
        ('ssl_cafile="ca.pem"', "ssl_cafile: expected no value with security_protocol PLAINTEXT, got 'ca.pem'"),
        (TOKEN, "sasl_token_file: expected a file with .* and sasl_mechanism OAUTHBEARER, got ''"),
        (TOKEN + 'sasl_username="me"', "sasl_username: expected no value with .* OAUTHBEARER, got 'me'"),
        (SCRAM + 'sasl_token_file="t"', "sasl_token_file: expected no value with .* SCRAM-SHA-512, got"),
        (SCRAM + 'ssl_certfile="c"', "ssl_keyfile: expected the key of ssl_certfile, got ''"),
        (SCRAM + 'ssl_keyfile="k"', "ssl_certfile: expected the certificate of ssl_keyfile, got ''"),
        (SCRAM + 'ssl_password_file="p"', "ssl_keyfile: expected the key of ssl_certfile, got ''"),
    ],
)
def test_what_does_not_fit_together_is_named(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^kafka\.{message}"):
        kafka_of(tmp_path, lines)


def test_a_secret_is_no_value_of_a_run_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sasl_password_file") as caught:
        kafka_of(tmp_path, SCRAM + 'sasl_password="hunter2"')
    assert "hunter2" not in str(caught.value)


def test_files_start_where_the_run_file_lies(tmp_path: Path) -> None:
    kafka = kafka_of(tmp_path, SCRAM + 'ssl_cafile="tls/ca.pem"\nsasl_password_file="/run/secrets/kafka"')
    assert (kafka.ssl_cafile, kafka.sasl_password_file) == (f"{tmp_path}/tls/ca.pem", "/run/secrets/kafka")


def test_without_security_only_the_addresses_are_said() -> None:
    arguments = client_arguments(KafkaTable(bootstrap_servers="a:1, b:2"))
    assert arguments == {"bootstrap_servers": ["a:1", "b:2"], "security_protocol": "PLAINTEXT"}


def test_a_password_comes_from_its_file_without_the_end_of_the_line(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(" spaces stay \r\n")
    arguments = client_arguments(kafka_of(tmp_path, SCRAM + 'sasl_password_file="password"'))
    del arguments["ssl_context"]
    assert arguments == {
        "bootstrap_servers": ["k:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": " spaces stay ",
    }


def test_a_password_comes_from_the_environment_and_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SASL_PASSWORD, "hunter2")
    arguments = client_arguments(kafka_of(tmp_path, SCRAM))
    assert arguments["sasl_plain_password"] == "hunter2"
    assert "hunter2" not in f"{arguments} {arguments!r} {Secret('hunter2')!r}"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", f"kafka.sasl_password_file: expected a file that holds the password, got none; name one, or set {SASL_PASSWORD}"),
        ('sasl_password_file="no"', "kafka.sasl_password_file: expected a file that can be read, got No such file .* at .*/no"),
        ('sasl_password_file="."', "kafka.sasl_password_file: expected a file that can be read, got Is a directory at"),
        ('sasl_password_file="empty"', "kafka.sasl_password_file: expected a file that holds a secret, got an empty one at"),
        ('sasl_password_file="latin"', "kafka.sasl_password_file: expected text, got bytes that are no UTF-8 in .*/latin"),
        ('ssl_cafile="no"', "kafka.ssl_cafile: expected a file that can be read, got No such file"),
        ('ssl_cafile="empty"', "kafka.ssl_cafile: expected certificates in PEM, got .* in .*/empty"),
        ('ssl_certfile="no"\nssl_keyfile="empty"', "kafka.ssl_certfile: expected a file that can be read, got No such file"),
        ('ssl_certfile="empty"\nssl_keyfile="no"', "kafka.ssl_keyfile: expected a file that can be read, got No such file"),
        ('ssl_certfile="empty"\nssl_keyfile="empty"', "kafka.ssl_keyfile: expected the key of .*/empty in PEM, got .*/empty;"),
    ],
)
def test_a_file_that_is_of_no_use_is_named(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "latin").write_bytes(b"p\xe4ssword")
    kafka = kafka_of(tmp_path, SCRAM + lines)
    with pytest.raises(ConfigError, match=message) as caught:
        client_arguments(kafka)
    assert "ssword'" not in repr(caught.value)


def test_two_passwords_are_one_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SASL_PASSWORD, "hunter2")
    (tmp_path / "password").write_text("hunter3")
    with pytest.raises(
        ConfigError, match=f"expected one source of the password, got a file and {SASL_PASSWORD}; unset"
    ) as caught:
        client_arguments(kafka_of(tmp_path, SCRAM + 'sasl_password_file="password"'))
    assert "hunter" not in str(caught.value)


def test_a_token_is_read_anew_each_time(tmp_path: Path) -> None:
    kafka = kafka_of(tmp_path, TOKEN + 'sasl_token_file="token"')
    for token in ("first", "second"):
        (tmp_path / "token").write_text(token + "\n")
        assert read_token(kafka) == token
    (tmp_path / "token").unlink()
    with pytest.raises(ConfigError, match=r"kafka.sasl_token_file: expected a file that can be read"):
        client_arguments(kafka)


def test_tls_trusts_the_system_where_no_authority_is_named() -> None:
    assert tls_context(KafkaTable(bootstrap_servers="k:1")) is None
    context = tls_context(KafkaTable(bootstrap_servers="k:1", security_protocol="SSL"))
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_saved_run_holds_the_files_of_secrets_and_is_met_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SASL_PASSWORD, "hunter2")
    path = write_run(tmp_path, f'[kafka]\nbootstrap_servers="k:9093"\nnum_partitions=2\n{SCRAM}ssl_cafile="ca.pem"\n')
    run = load_run(path)
    assert save_run(run) == ""
    assert "hunter2" not in (run.directory / "run.toml").read_text()
    monkeypatch.setenv("GAGAR_KAFKA_BOOTSTRAP_SERVERS", "moved:9093")
    plain = load_run(
        path, ("kafka.security_protocol=PLAINTEXT", "kafka.sasl_mechanism=", "kafka.sasl_username=", "kafka.ssl_cafile=")
    )
    saved = saved_run(plain)
    assert saved is not None
    assert saved.kafka == structs.replace(run.kafka, bootstrap_servers="moved:9093")
    token = load_run(
        path, ("kafka.sasl_mechanism=OAUTHBEARER", "kafka.sasl_username=", "kafka.sasl_token_file=t", "kafka.num_partitions=9")
    )
    again = saved_run(token)
    assert again is not None
    assert (again.kafka.sasl_token_file, again.kafka.num_partitions) == (f"{tmp_path}/t", 2)
    assert differences(settings_of(run), settings_of(token)) == ["kafka.num_partitions: was 2, now 9"]


def test_the_local_broker_is_met_in_plain_text_only(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, '[kafka]\nsecurity_protocol="SSL"\n'))
    with pytest.raises(
        ConfigError, match=r"kafka.security_protocol: expected PLAINTEXT with the local broker, got SSL; set kafka"
    ):
        cluster_now(run)


def test_no_test_here_leaves_a_password_in_the_environment() -> None:
    assert not {security.SASL_PASSWORD, security.SSL_PASSWORD} & os.environ.keys()
