"""Whether a cluster can be met as [kafka] says: with or without TLS, with or without a login.

The clients tell a wrong protocol from a broker that is down by neither error nor time: they try again, for ever. So the brokers
are asked first, over a socket of our own; a wrong name or password is left to the clients. Nothing is kept.
"""

import ssl
import struct

from gagar.broker.address import no_cluster
from gagar.broker.probe import REQUEST, answer_to, connected, is_answering, is_any_answering
from gagar.broker.security import tls_context
from gagar.config import KafkaTable
from gagar.errors import ConfigError

PROBE_S = 2.0
NO_LOGIN = 34
"""Error code ILLEGAL_SASL_STATE: the listener wants no login."""
MECHANISM_CODES = (0, 33)
"""Error codes beside which a listener names its mechanisms; 33: UNSUPPORTED_SASL_MECHANISM."""


def check_cluster(kafka: KafkaTable, timeout_s: float) -> None:
    """Waits up to about `timeout_s` for a broker to answer. Raises UnavailableError if none does, ConfigError if they are to be
    met in another way than [kafka] says."""
    context = tls_context(kafka)
    if not is_any_answering(kafka.servers, timeout_s, context):
        for server in kafka.servers:
            _check_encryption(kafka, server, context)
        raise no_cluster(kafka.bootstrap_servers)
    for server in kafka.servers:
        mechanisms = _mechanisms(kafka, server, context)
        if mechanisms is not None:
            _check_login(kafka, server, mechanisms)
            return


def _check_encryption(kafka: KafkaTable, server: str, context: ssl.SSLContext | None) -> None:
    """Raises ConfigError if the broker speaks TLS and we do not, or the other way round, or if one does not trust the other."""
    try:
        with connected(server, PROBE_S, context) as connection:
            answer_to(connection, REQUEST)
    except ssl.SSLCertVerificationError as error:
        got = error.verify_message.rstrip(".")
        raise ConfigError(
            f"kafka.ssl_cafile: expected authorities that vouch for the broker at {server}, got: {got}; "
            "name the file of those that signed its certificate, and the broker as that certificate does"
        ) from error
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            raise ConfigError(
                f"kafka.ssl_certfile: expected a certificate that the broker at {server} takes, got its alert {error.reason}; "
                "name one that its authorities have signed, and ssl_keyfile"
            ) from error
    except (OSError, ValueError):
        pass
    if kafka.has_ssl and is_answering(server, PROBE_S):
        raise _wrong_protocol(kafka, server, "speaks plain text", "PLAINTEXT")
    if not kafka.has_ssl and _speaks_tls(server):
        raise _wrong_protocol(kafka, server, "speaks TLS", "SSL")


def _speaks_tls(server: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        connected(server, PROBE_S, context).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except (OSError, ValueError):
        return False
    return True


def _mechanisms(kafka: KafkaTable, server: str, context: ssl.SSLContext | None) -> list[str] | None:
    """By which mechanisms clients may log in at a broker: none of them if it wants no login; None if it does not say."""
    name = (kafka.sasl_mechanism or "PLAIN").encode()
    body = struct.pack(f">hhihh{len(name)}s", 17, 1, 2, -1, len(name), name)  # SaslHandshake, version 1, no client id
    try:
        with connected(server, PROBE_S, context) as connection:
            answer = answer_to(connection, struct.pack(">i", len(body)) + body)
    except (OSError, ValueError):
        return None
    code = int.from_bytes(answer[:2], "big") if answer else -1
    if code == NO_LOGIN:
        return []
    return _strings(answer[2:]) if answer and code in MECHANISM_CODES else None


def _strings(data: bytes) -> list[str]:
    """An array of strings as the protocol writes it: their number, then each one after its size."""
    found, at = list[str](), 4
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        found.append(data[at + 2 : at + 2 + size].decode(errors="replace"))
        at += 2 + size
    return found


def _check_login(kafka: KafkaTable, server: str, mechanisms: list[str]) -> None:
    """Raises ConfigError if the broker wants a login and we have none, or the other way round, or another mechanism."""
    if kafka.has_sasl and not mechanisms:
        raise _wrong_protocol(kafka, server, "wants no login", "SSL" if kafka.has_ssl else "PLAINTEXT")
    names = ", ".join(mechanisms)
    if mechanisms and not kafka.has_sasl:
        does, expected = f"wants a login by {names}", "SASL_SSL" if kafka.has_ssl else "SASL_PLAINTEXT"
        raise _wrong_protocol(kafka, server, does, expected)
    if mechanisms and kafka.sasl_mechanism not in mechanisms:
        raise ConfigError(f"kafka.sasl_mechanism: expected one that {server} takes ({names}), got {kafka.sasl_mechanism}")


def _wrong_protocol(kafka: KafkaTable, server: str, does: str, expected: str) -> ConfigError:
    either = expected if expected.startswith("SASL") or "login" in does else f"{expected} or SASL_{expected}"
    return ConfigError(
        f"kafka.security_protocol: expected {either}, since the broker at {server} {does}, got {kafka.security_protocol}"
    )
