"""A Kafka of its own that wants TLS, a login and permissions: one node with a listener of each kind.

User `me` may do what a run whose name begins with `allowed` needs, and nothing else; so may whoever has the client certificate
or a token. `INTERNAL` is the broker's own listener, in plain text and without a login; whoever comes there may do all.
"""

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gagar.config import KafkaTable, SecurityProtocol
from tests.broker.own_broker import broker_process, free_ports

USER = "me"
PASSWORD = "correct horse"
PREFIX = "allowed"
"""Of the topics, groups and transactional ids that the users may use."""
LISTENERS = ("INTERNAL", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={CONTROLLER}
listeners={listeners},CONTROLLER://{CONTROLLER}
advertised.listeners={listeners},CONTROLLER://{CONTROLLER}
listener.security.protocol.map=INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
inter.broker.listener.name=INTERNAL
log.dirs=data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
message.max.bytes=75497472
socket.request.max.bytes=150994944
group.initial.rebalance.delay.ms=0
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
ssl.keystore.type=PEM
ssl.keystore.location=server.pem
ssl.truststore.type=PEM
ssl.truststore.location=ca.pem
listener.name.ssl.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=([^,]+)$/$1/
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN
{logins}
"""
MODULES = {
    "plain": f'plain.PlainLoginModule required user_{USER}="{PASSWORD}"',
    "scram-sha-256": "scram.ScramLoginModule required",
    "scram-sha-512": "scram.ScramLoginModule required",
    "oauthbearer": 'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker"',
}
NEEDED = {
    "TOPIC": ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "GROUP": ("READ", "DESCRIBE"),
    "TRANSACTIONAL_ID": ("WRITE", "DESCRIBE"),
}
"""What a run needs of each kind of resource, as the README lists it."""


class SecuredBroker:
    """A broker that answers. `directory` holds `ca.pem`, `me.pem`, `me.key`, `password` and `token`."""

    def __init__(self, directory: Path, addresses: dict[str, str]) -> None:
        self.directory = directory
        self.addresses = addresses

    def kafka(self, protocol: SecurityProtocol = "SASL_SSL", listener: str = "", **fields: Any) -> KafkaTable:
        """[kafka] for a listener; SASL_SSL with SCRAM and the right password unless told otherwise."""
        keys: dict[str, Any] = {"bootstrap_servers": self.addresses[listener or protocol], "security_protocol": protocol}
        if protocol.startswith("SASL"):
            keys |= {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": USER, "sasl_password_file": self.path("password")}
        if protocol.endswith("SSL"):
            keys["ssl_cafile"] = self.path("ca.pem")
        return KafkaTable(**{key: value for key, value in (keys | fields).items() if value is not None})

    def deny(self, kind: str, operation: str, name: str) -> None:
        """Takes one permission from the user."""
        permit(self.addresses["INTERNAL"], {kind: (operation,)}, name, "DENY", "LITERAL")

    def path(self, name: str) -> str:
        return str(self.directory / name)


@contextmanager
def secured_broker(directory: Path) -> Iterator[SecuredBroker]:
    """A broker for the length of a `with`. Raises UnavailableError without Java or jars."""
    directory.mkdir(parents=True)
    names = ("CONTROLLER", *LISTENERS)
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}
    write_certificates(directory)
    (directory / "password").write_text(PASSWORD + "\n")
    (directory / "token").write_text(token(USER))
    scram = [f"--add-scram={name}=[name={USER},password={PASSWORD}]" for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")]
    with broker_process(directory, properties(addresses), addresses["INTERNAL"], *scram):
        permit(addresses["INTERNAL"], NEEDED, PREFIX, "ALLOW", "PREFIXED")
        yield SecuredBroker(directory, addresses)


def properties(addresses: dict[str, str]) -> str:
    listeners = ",".join(f"{name}://{addresses[name]}" for name in LISTENERS)
    package = "org.apache.kafka.common.security"
    logins = [
        f"listener.name.{listener}.{mechanism}.sasl.jaas.config={package}.{module};"
        for listener in ("sasl_ssl", "sasl_plaintext")
        for mechanism, module in MODULES.items()
    ]
    return PROPERTIES.format(listeners=listeners, logins="\n".join(logins), **addresses)


def write_certificates(directory: Path) -> None:
    """An authority, and keys with certificates of it for the broker and for the user."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority")
    for name, subject in (("server", "/CN=broker"), (USER, f"/CN={USER}")):
        (directory / "names").write_text("subjectAltName=IP:127.0.0.1")
        openssl("req", "-new", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    openssl("pkcs8", "-topk8", "-in", f"{USER}.key", "-out", "encrypted.key", "-passout", f"pass:{PASSWORD}")
    chain = directory / "server.pem"
    chain.write_text((directory / "server.key").read_text() + chain.read_text())


def token(subject: str, lifetime_s: float = 3600.0) -> str:
    """A token of OAUTHBEARER that nobody has signed; the broker takes such ones."""
    now = time.time()
    claims = {"sub": subject, "iat": now, "exp": now + lifetime_s}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims)]
    return ".".join([*parts, ""])


def permit(address: str, operations: dict[str, tuple[str, ...]], name: str, permission: str, pattern: str) -> None:
    """Permissions of the user, by kind of resource: to be allowed or denied."""
    from kafka import KafkaAdminClient, admin  # noqa: TID251  what is tested has no permissions to give

    acls = [
        admin.ACL(
            principal=f"User:{USER}",
            host="*",
            operation=admin.ACLOperation[operation],
            permission_type=admin.ACLPermissionType[permission],
            resource_pattern=admin.ResourcePattern(admin.ResourceType[kind], name, admin.ACLResourcePatternType[pattern]),
        )
        for kind, names in operations.items()
        for operation in names
    ]
    client = KafkaAdminClient(bootstrap_servers=address)
    try:
        answer = client.create_acls(acls)
        assert not answer["failed"], answer
    finally:
        client.close()
