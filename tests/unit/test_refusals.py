"""What may pass is told from what never will: every error of the client is judged, and only the second kind ends a stage."""

from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import errors  # noqa: TID251  as the client raises them

from gagar.errors import ClusterRefusalError, FencedError, UnavailableError
from gagar.stream.handlers import Delivery, Effect, Output
from gagar.stream.kafka.connecting import FENCED, REFUSED, translated
from gagar.stream.kafka.refusals import REFUSALS, InvalidRecord, UnsupportedCompressionType, refusal_of
from gagar.stream.transport import RefusedError
from tests.builders import make_request
from tests.contract.world import DEAD_LETTERS, MemoryWorld, Process, make_stage, read, write

MAY_PASS = (
    # What is wrong with this client's state, which another producer, consumer or membership mends.
    errors.IllegalStateError,
    errors.IllegalArgumentError,
    errors.CommitFailedError,
    errors.ConsumerStoppedError,
    errors.NoOffsetForPartitionError,
    errors.RecordTooLargeError,
    errors.ProducerClosed,
    errors.IllegalGenerationError,
    errors.UnknownMemberIdError,
    errors.RebalanceInProgressError,
    errors.MemberIdRequired,
    errors.OutOfOrderSequenceNumber,
    errors.DuplicateSequenceNumber,
    errors.InvalidTxnState,
    errors.ConcurrentTransactions,
    errors.OperationNotAttempted,
    errors.UnknownProducerId,
    errors.OffsetOutOfRangeError,
    errors.FetchSessionIdNotFound,
    errors.InvalidFetchSessionEpoch,
    # What is wrong with the cluster for a while.
    errors.KafkaUnavailableError,
    errors.KafkaTimeoutError,
    errors.QuotaViolationError,
    errors.BrokerNotAvailableError,
    errors.ReplicaNotAvailableError,
    errors.StaleControllerEpochError,
    errors.StaleLeaderEpochCodeError,
    errors.TransactionCoordinatorFenced,
    errors.LogDirNotFound,
    errors.ListenerNotFound,
    errors.CorruptRecordException,  # on the way, or in one replica; the protocol calls it retriable
    # A password, a certificate or a token is renewed on both sides, one after the other.
    errors.AuthenticationFailedError,
    errors.SaslAuthenticationFailed,
    # What says nothing of its cause.
    errors.KafkaError,
    errors.BrokerResponseError,
    errors.NoError,
    errors.UnknownError,
    errors.KafkaConfigurationError,
    errors.InvalidRequestError,
    errors.InvalidFetchRequestError,
    # Answers to questions that no stage asks.
    errors.InvalidRequiredAcksError,
    errors.InvalidGroupIdError,
    errors.TopicAlreadyExistsError,
    errors.InvalidPartitionsError,
    errors.InvalidReplicationFactorError,
    errors.InvalidReplicationAssignmentError,
    errors.ReassignmentInProgress,
    errors.DelegationTokenAuthDisabled,
    errors.DelegationTokenNotFound,
    errors.DelegationTokenOwnerMismatch,
    errors.DelegationTokenRequestNotAllowed,
    errors.DelegationTokenAuthorizationFailed,
    errors.DelegationTokenExpired,
    errors.InvalidPrincipalType,
    errors.NonEmptyGroup,
    errors.GroupIdNotFound,
)
"""Errors that the protocol does not call retriable, and for which no stage may end all the same."""


def classes(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for below in kind.__subclasses__():
        yield from classes(below)


ALL = sorted({*classes(errors.KafkaError), errors.ConsumerStoppedError}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_of_the_client_is_judged_once(kind: type[Exception]) -> None:
    homes = [kind in home for home in (FENCED, REFUSED, REFUSALS, MAY_PASS)]
    assert sum(homes) == (0 if getattr(kind, "retriable", False) else 1)


@pytest.mark.parametrize("kind", [kind for kind in ALL if issubclass(kind, errors.KafkaError)], ids=lambda kind: kind.__name__)
def test_an_error_becomes_what_it_is_judged_to_be(kind: type[Exception]) -> None:
    expected = {**dict.fromkeys(FENCED, FencedError), **dict.fromkeys(REFUSED, RefusedError)}
    expected |= dict.fromkeys((kind for kind in REFUSALS if issubclass(kind, errors.KafkaError)), ClusterRefusalError)
    with pytest.raises(expected.get(kind, UnavailableError), match=r"lane: expected .*, got ") as told, translated("lane"):
        raise kind("for a test")
    assert type(told.value) is expected.get(kind, UnavailableError)


@pytest.mark.parametrize("code", [2, 7, 14, 15, 16, 19, 20, 51, 56, 9999], ids=lambda code: errors.for_code(code).__name__)
def test_what_brokers_answer_while_they_start_stop_or_lead_no_more_may_pass(code: int) -> None:
    assert refusal_of(errors.for_code(code)()) is None


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (76, UnsupportedCompressionType, "records in zstd to be taken, got .*76.*; take brokers"),
        (87, InvalidRecord, "settings of topics and brokers that let it work, got .*87.*; see `gagar topics check`"),
        (
            50,
            errors.InvalidTransactionTimeout,
            ".* up to twice kafka.transaction_timeout_s, got .*; lower it, or raise transaction.max.timeout.ms",
        ),
        (26, errors.InvalidSessionTimeoutError, ".* of 6000 and .* 45000 ms .*, got .*; let group.min.session.timeout.ms"),
        (12, errors.OffsetMetadataTooLargeError, "4096 bytes .*; raise offset.metadata.max.bytes of the brokers to 4096"),
        (35, errors.UnsupportedVersionError, "a cluster that speaks as Apache Kafka 2.5"),
        (53, errors.TransactionalIdAuthorizationFailed, "permission, got .*; let .* WRITE and DESCRIBE on transactional ids"),
    ],
)
def test_a_refusal_says_what_to_change(code: int, kind: type[Exception], advice: str) -> None:
    assert errors.for_code(code) is kind
    with pytest.raises(ClusterRefusalError, match=f"lane: expected {advice}"), translated("lane"):
        raise errors.for_code(code)()


def test_a_refusal_is_seen_behind_what_the_client_wraps_around_it() -> None:
    cause = errors.OffsetMetadataTooLargeError()
    with pytest.raises(ClusterRefusalError, match=r"got .*OffsetMetadataTooLarge"), translated("lane"):
        raise errors.KafkaError("Unexpected error during batch delivery") from cause


def test_the_cause_of_an_error_with_a_name_of_its_own_does_not_count() -> None:
    with pytest.raises(UnavailableError), translated("lane"):
        raise errors.KafkaTimeoutError from errors.InvalidTransactionTimeout()


def test_a_cluster_that_shares_no_version_with_the_client_is_no_bug() -> None:
    with pytest.raises(ClusterRefusalError, match="speaks as Apache Kafka"), translated("lane"):
        raise NotImplementedError("Support for ProduceRequest has not yet been added")


async def test_a_refusal_in_a_handler_ends_the_stage_and_is_no_fault_of_the_record() -> None:
    class Refused(Effect):
        async def handle(self, delivery: Delivery[Any]) -> list[Output]:
            raise ClusterRefusalError("references: expected permission, got a no")

    world = MemoryWorld()
    await write(world, [make_request("t-000001")])
    async with Process(world, make_stage("effect"), Refused()) as process:
        with pytest.raises(ClusterRefusalError, match="references: expected permission"):
            await process.ended()
    assert await read(world, DEAD_LETTERS) == []
