"""How clients meet a cluster: the arguments that [kafka] makes for every client, and its secrets.

In: a `KafkaTable`. Out: keyword arguments that aiokafka and kafka-python both take. Secrets come from files that the table
names, or from the environment; they are kept nowhere, and shown nowhere: their `repr` says nothing.
"""

import os
import ssl
from pathlib import Path
from typing import Any

from gagar.config import KafkaTable
from gagar.errors import ConfigError

SASL_PASSWORD = "GAGAR_KAFKA_SASL_PASSWORD"
SSL_PASSWORD = "GAGAR_KAFKA_SSL_PASSWORD"


class Secret(str):
    """A secret, which the clients may print with all their arguments."""

    def __repr__(self) -> str:
        return "'***'"


def client_arguments(kafka: KafkaTable) -> dict[str, Any]:
    """What any client is opened with. Raises ConfigError for a secret, a certificate or a key that cannot be used."""
    arguments: dict[str, Any] = {"bootstrap_servers": kafka.servers, "security_protocol": kafka.security_protocol}
    if kafka.has_ssl:
        arguments["ssl_context"] = tls_context(kafka)
    if kafka.has_sasl:
        arguments["sasl_mechanism"] = kafka.sasl_mechanism
    if kafka.sasl_username:
        arguments["sasl_plain_username"] = kafka.sasl_username
        arguments["sasl_plain_password"] = _password("sasl_password_file", kafka.sasl_password_file, SASL_PASSWORD)
    elif kafka.sasl_token_file:
        read_token(kafka)
    return arguments


def tls_context(kafka: KafkaTable) -> ssl.SSLContext | None:
    """Whom clients trust and how they prove themselves; none without TLS. Raises ConfigError."""
    if not kafka.has_ssl:
        return None
    context = ssl.create_default_context(cafile=_authorities(kafka.ssl_cafile))
    if kafka.ssl_certfile:
        _load_certificate(context, kafka)
    return context


def _authorities(path: str) -> str | None:
    """The file if it holds authorities, none if the system's are meant."""
    if not path:
        return None
    _text("ssl_cafile", path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(f"kafka.ssl_cafile: expected certificates in PEM, got {error.reason or error} in {path}") from None
    return path


def _load_certificate(context: ssl.SSLContext, kafka: KafkaTable) -> None:
    _text("ssl_certfile", kafka.ssl_certfile)
    is_encrypted = "ENCRYPTED" in _text("ssl_keyfile", kafka.ssl_keyfile)
    password = _password("ssl_password_file", kafka.ssl_password_file, SSL_PASSWORD) if is_encrypted else None
    try:
        context.load_cert_chain(kafka.ssl_certfile, kafka.ssl_keyfile, password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"kafka.ssl_keyfile: expected the key of {kafka.ssl_certfile} in PEM, got {error.reason or error} in "
            f"{kafka.ssl_keyfile}; mend the two files{', or the password of the key' if is_encrypted else ''}"
        ) from None


def read_token(kafka: KafkaTable) -> Secret:
    """The token of OAUTHBEARER as its file has it now. Raises ConfigError."""
    return _secret("sasl_token_file", kafka.sasl_token_file)


def _password(key: str, path: str, variable: str) -> Secret:
    """From the file, or else from the environment."""
    given = os.environ.get(variable, "")
    if path and given:
        raise ConfigError(f"kafka.{key}: expected one source of the password, got a file and {variable}; unset one of them")
    if path:
        return _secret(key, path)
    if not given:
        raise ConfigError(f"kafka.{key}: expected a file that holds the password, got none; name one, or set {variable}")
    return Secret(given)


def _secret(key: str, path: str) -> Secret:
    """What a file holds, without the line's end."""
    secret = _text(key, path).strip("\r\n")
    if not secret.strip():
        raise ConfigError(f"kafka.{key}: expected a file that holds a secret, got an empty one at {path}")
    return Secret(secret)


def _text(key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"kafka.{key}: expected a file that can be read, got {error.strerror} at {path}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"kafka.{key}: expected text, got bytes that are no UTF-8 in {path}") from None
