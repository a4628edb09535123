"""Settings of the local broker: one KRaft node on the loopback interface, sized for a laptop."""

from pathlib import Path

DATA = "data"
"""Folder of the broker's data, below the directory that it runs in."""
MAX_MESSAGE_BYTES = 72 << 20
"""Above the largest record of any topic."""
SEGMENT_BYTES = 512 << 20
"""Above the largest record, or the send fails; segments are not preallocated."""
INTERNAL_SEGMENT_BYTES = 4 << 20


def server_properties(port: int, controller_port: int) -> dict[str, str]:
    """What `server.properties` holds for a broker that listens on these ports."""
    client, controller = f"127.0.0.1:{port}", f"127.0.0.1:{controller_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": controller,
        "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": DATA,
        **_internal_topics(),
        **_sizes(),
        "auto.create.topics.enable": "false",
        # A controlled shutdown first takes the leader from every partition, and a lone node has no other. The transaction
        # coordinator then takes the partitions for deleted and ends transactions without their markers (seen with Kafka 4.3.1):
        # their offsets count, their records are aborted with the next one. Else the next start writes the markers.
        "controlled.shutdown.enable": "false",
        # After a SIGKILL the controller waits for the end of the old broker's session (default 9 s).
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",
        "transaction.max.timeout.ms": str(15 * 60 * 1000),
        # A run that was paused for longer than this could not go on: the default is a week, this ten years.
        "offsets.retention.minutes": str(10 * 365 * 24 * 60),
        # A zombie's open transaction holds back every read-committed reader: look for it often.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
    }


def _internal_topics() -> dict[str, str]:
    """One node: one replica of everything, and one partition, since each costs memory and files."""
    return {
        "offsets.topic.num.partitions": "1",
        # A coordinator that starts reads all of it: compacted often (only closed segments are), it is there at once.
        "offsets.topic.segment.bytes": str(INTERNAL_SEGMENT_BYTES),
        "transaction.state.log.segment.bytes": str(INTERNAL_SEGMENT_BYTES),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }


def _sizes() -> dict[str, str]:
    return {
        "message.max.bytes": str(MAX_MESSAGE_BYTES),
        "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
        "socket.request.max.bytes": str(2 * MAX_MESSAGE_BYTES),
        "log.segment.bytes": str(SEGMENT_BYTES),
        "log.index.size.max.bytes": str(2 << 20),
        "log.cleaner.dedupe.buffer.size": str(2 << 20),
        "log.retention.hours": "168",
        "log.retention.check.interval.ms": "60000",
    }


def write_properties(path: Path, properties: dict[str, str]) -> None:
    """Writes a Java properties file; backslashes in values are escaped."""
    lines = (f"{key}={value}".replace("\\", "\\\\") for key, value in properties.items())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
