"""What a cluster refuses for good: no retry mends it, whoever runs the cluster must.

In: an error of aiokafka (0.14). Out: what was expected and what to do; nothing for an error that may pass. Every error counts
as passing unless it stands here: no stage ends for an error that nobody knows.
"""

from typing import NamedTuple

from aiokafka import errors

SESSION_TIMEOUT_MS = 6000
NAMED_SESSION_TIMEOUT_MS = 45_000
"""Of a member with a name: for so long its partitions wait for its restart, after whatever end."""


class UnsupportedCompressionType(errors.BrokerResponseError):  # type: ignore[misc]
    """UNSUPPORTED_COMPRESSION_TYPE, which the client does not know."""

    errno = 76


class InvalidRecord(errors.BrokerResponseError):  # type: ignore[misc]
    """INVALID_RECORD, which the client does not know."""

    errno = 87


for kind in (UnsupportedCompressionType, InvalidRecord):  # else the client calls both, and whatever else, an UnknownError
    errors.kafka_errors.setdefault(kind.errno, kind)


class Refusal(NamedTuple):
    """What to say of an error."""

    expected: str
    advice: str


def _permission(needed: str) -> Refusal:
    return Refusal("permission", f"let the user of [kafka] have {needed} whose names begin with that of the run, see README.md")


VERSION = Refusal(
    "a cluster that speaks as Apache Kafka 2.5 or newer does", "take another cluster, or another kafka.bootstrap_servers"
)
LOGIN = Refusal("to be let in", "compare kafka.security_protocol and kafka.sasl_mechanism with the brokers' listeners")
SETTINGS = Refusal("settings of topics and brokers that let it work", "see `gagar topics check`, and ask who runs the cluster")

REFUSALS: dict[type[BaseException], Refusal] = {
    errors.TopicAuthorizationFailedError: _permission("READ, WRITE and DESCRIBE on topics"),
    errors.GroupAuthorizationFailedError: _permission("READ on consumer groups"),
    errors.TransactionalIdAuthorizationFailed: _permission("WRITE and DESCRIBE on transactional ids"),
    errors.ClusterAuthorizationFailedError: Refusal(
        "permission", "let the user of [kafka] have IDEMPOTENT_WRITE on the cluster, see README.md"
    ),
    errors.InvalidTransactionTimeout: Refusal(
        "transactions of up to twice kafka.transaction_timeout_s",
        "lower it, or raise transaction.max.timeout.ms of the brokers",
    ),
    errors.InvalidSessionTimeoutError: Refusal(
        f"session timeouts of {SESSION_TIMEOUT_MS} and (with --member) {NAMED_SESSION_TIMEOUT_MS} ms in consumer groups",
        "let group.min.session.timeout.ms and group.max.session.timeout.ms of the brokers allow them",
    ),
    errors.OffsetMetadataTooLargeError: Refusal(
        "4096 bytes beside an offset", "raise offset.metadata.max.bytes of the brokers to 4096, which is their default"
    ),
    errors.InvalidCommitOffsetSizeError: Refusal(
        "4096 bytes beside an offset", "raise max.message.bytes of the topic __consumer_offsets to 1048588"
    ),
    errors.UnsupportedCodecError: Refusal(
        "records in a codec that this machine can read", "install the project again: cramjam brings snappy, lz4 and zstd"
    ),
    UnsupportedCompressionType: Refusal("records in zstd to be taken", "take brokers of Apache Kafka 2.5 or newer"),
    errors.UnsupportedVersionError: VERSION,
    errors.UnsupportedForMessageFormatError: VERSION,
    errors.IncompatibleBrokerVersion: VERSION,
    errors.UnrecognizedBrokerVersion: VERSION,
    NotImplementedError: VERSION,  # the client's own word for a request of which it and the broker share no version
    errors.UnsupportedSaslMechanismError: LOGIN,
    errors.IllegalSaslStateError: LOGIN,
    errors.AuthenticationMethodNotSupported: LOGIN,
    errors.SecurityDisabled: LOGIN,
    InvalidRecord: SETTINGS,
    errors.InvalidTimestampError: SETTINGS,
    errors.InvalidTopicError: SETTINGS,
    errors.InvalidConfigurationError: SETTINGS,
    errors.PolicyViolationError: SETTINGS,
    errors.InconsistentGroupProtocolError: Refusal(
        "a consumer group of stages only", "end what else is a member of it, or take another run.name"
    ),
}


def refusal_of(error: BaseException) -> tuple[Refusal, BaseException] | None:
    """What to say of an error, and the cluster's word; none if it may pass. The client's tasks wrap what ends them into a bare
    KafkaError."""
    while type(error) is errors.KafkaError and error.__cause__ is not None:
        error = error.__cause__
    refusal = REFUSALS.get(type(error))
    return None if refusal is None else (refusal, error)
