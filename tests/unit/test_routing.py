"""Where records go, and what a dead letter holds."""

import pytest

from gagar.errors import BadRecordError, GagarError
from gagar.records import DeadLetter, Outcome, PolicyVersion, RolloutRequest, decode, encode
from gagar.stream.handlers import Linked, Tombstone
from gagar.stream.lanes.units import LinkedSend, Spot
from gagar.stream.routing import Router, key_of, to_delivery
from gagar.stream.transport import Partition, RawRecord, Send
from tests.builders import make_request
from tests.contract.world import DEAD_LETTERS, OUTCOMES, REQUESTS, TRAJECTORIES, VERSIONS, make_stage, make_trajectory

VERSION = PolicyVersion(run_id="r", version=3, step=3, location="x", checksum="y")
AT = Partition("rollout-requests", 2)


def make_raw(value: bytes | None = None, key: bytes = b"t-000001") -> RawRecord:
    return RawRecord(at=AT, offset=7, key=key, value=value, headers=[("h", b"1")], time=5.0)


def make_router(holds_groups: bool = False) -> Router:
    outputs = (TRAJECTORIES, OUTCOMES, VERSIONS)
    return Router(make_stage("effect", outputs=outputs, holds_groups=holds_groups), DEAD_LETTERS)


def test_keys_are_groups_or_versions() -> None:
    assert key_of(make_request("t-000009")) == "t-000009"
    assert key_of(VERSION) == "r/3"


def test_an_output_goes_to_the_topic_of_its_type_under_its_key() -> None:
    trajectory = make_trajectory(make_request("t-000009"))
    [send] = make_router().encode_all([trajectory])
    assert send == Send(topic="trajectories", key=b"t-000009", value=encode(trajectory))


def test_a_tombstone_has_the_key_and_no_value() -> None:
    assert make_router().encode_all([Tombstone(of=VERSION)]) == [Send(topic="policy-versions", key=b"r/3", value=None)]


def test_a_link_keeps_its_second_record_for_later() -> None:
    trajectory = make_trajectory(make_request())
    [link] = make_router().encode_all([Linked(first=VERSION, then=lambda ref: trajectory)])
    assert isinstance(link, LinkedSend)
    assert link.first.topic == "policy-versions"


def test_a_record_without_a_topic_of_the_stage_is_bad() -> None:
    with pytest.raises(BadRecordError, match=r"expected outputs for trajectories, outcomes, .* got a RolloutRequest"):
        make_router().encode(make_request())


def test_a_record_above_its_topics_bound_is_bad() -> None:
    with pytest.raises(BadRecordError, match="trajectories record of t-000000: expected at most 1044480 bytes"):
        make_router().encode(make_trajectory(make_request(), patch="x" * (1 << 20)))


def test_a_delivery_says_where_and_when() -> None:
    delivery = to_delivery(make_raw(encode(make_request())), REQUESTS)
    assert (str(delivery.ref), delivery.key, delivery.at) == ("rollout-requests[2]@7", "t-000001", 5.0)
    assert isinstance(delivery.record, RolloutRequest)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (make_raw(None), "got a tombstone"),
        (make_raw(b"\xc1"), "expected its MessagePack form"),
        (make_raw(encode(make_request()), key=b"\xff"), "expected a key of UTF-8"),
    ],
)
def test_what_cannot_be_read_is_bad_and_says_where(raw: RawRecord, text: str) -> None:
    with pytest.raises(BadRecordError, match=text) as caught:
        to_delivery(raw, REQUESTS)
    assert str(caught.value).startswith("rollout-requests[2]@7: ")


def test_a_dead_letter_holds_the_record_as_it_came() -> None:
    unit = make_router().dead_unit(make_raw(b"\xc1"), "why")
    [send] = unit.outputs
    assert isinstance(send, Send)
    letter = decode(DeadLetter, send.value or b"")
    assert (letter.key, letter.value, letter.headers) == (b"t-000001", b"\xc1", [("h", b"1")])
    assert (letter.error, letter.stage) == ("rollout-requests[2]@7: why", "under-test")
    assert (send.topic, send.key, unit.kind, unit.inputs) == ("dead-letters", b"t-000001", "dead", (Spot(AT, 7),))


def test_a_dead_letter_ends_the_group_of_a_stage_that_holds_groups() -> None:
    _, send = make_router(holds_groups=True).dead_unit(make_raw(b""), "why").outputs
    assert isinstance(send, Send)
    outcome = decode(Outcome, send.value or b"")
    assert (outcome.group_id, outcome.kind, outcome.reason) == ("t-000001", "dropped", "dead_letter")


@pytest.mark.parametrize("key", [b"", b"\xff"])
def test_no_group_is_invented_for_a_key_that_names_none(key: bytes) -> None:
    assert len(make_router(holds_groups=True).dead_unit(make_raw(b"", key=key), "why").outputs) == 1


def test_a_dead_letter_always_fits() -> None:
    [send] = make_router().dead_unit(make_raw(b"x" * (9 << 20)), "why").outputs
    assert isinstance(send, Send)
    assert len(send.value or b"") < DEAD_LETTERS.max_record_bytes
    assert decode(DeadLetter, send.value or b"").error.startswith("rollout-requests[2]@7: cut from 9437184 to")


def test_a_stage_that_holds_groups_must_be_able_to_end_them() -> None:
    with pytest.raises(GagarError, match="expected outcomes among the outputs"):
        Router(make_stage("effect", outputs=(TRAJECTORIES,), holds_groups=True), DEAD_LETTERS)
