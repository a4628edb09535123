"""Records: encode and decode are inverse, strangers are refused, and alignment is checked on every token array."""

from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.arrays import Tensor
from gagar.errors import BadRecordError
from gagar.records import (
    RECORDS_FORMAT,
    SENTINEL_LOGPROB,
    AttemptFacts,
    LogRef,
    Outcome,
    PatchMeasures,
    Record,
    RolloutRequest,
    Trajectory,
    TrajectoryTokens,
    Verdict,
    check_alignment,
    decode,
    encode,
)

texts = st.text(max_size=50)
small = st.integers(min_value=-1, max_value=2**31)
times = st.floats(allow_nan=False, allow_infinity=False)
refs = st.builds(LogRef, topic=texts, partition=small, offset=st.integers(0, 2**62))
measures = st.builds(PatchMeasures, num_added_lines=small, num_files_out_of_scope=st.integers(0, 3))


@st.composite
def token_records(draw: st.DrawFn) -> TrajectoryTokens:
    """Aligned records with any mask."""
    mask = draw(st.lists(st.booleans(), max_size=40))
    length = len(mask)
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length))
    logprobs = draw(st.lists(st.floats(-50, 0, width=32), min_size=length, max_size=length))
    return make_tokens(
        token_ids=ids,
        loss_mask=[int(m) for m in mask],
        behaviour_logprobs=[p if m else 0.0 for p, m in zip(logprobs, mask, strict=True)],
        policy_versions=[3 if m else -1 for m in mask],
    )


def make_tokens(**changes: Any) -> TrajectoryTokens:
    """Two prompt tokens and two sampled ones, but for `changes`."""
    values = {
        "token_ids": [5, 6, 7, 8],
        "loss_mask": [0, 0, 1, 1],
        "behaviour_logprobs": [0.0, 0.0, -0.5, -1.5],
        "policy_versions": [-1, -1, 3, 4],
        **changes,
    }
    dtypes = {"token_ids": "<i4", "loss_mask": "u1", "behaviour_logprobs": "<f4", "policy_versions": "<i4"}
    tensors = {
        name: value if isinstance(value, Tensor) else Tensor.of(np.array(value, dtypes[name])) for name, value in values.items()
    }
    return TrajectoryTokens(group_id="g1", sample_index=2, **tensors)


facts = st.builds(AttemptFacts, request=refs, tokens=st.none() | refs, num_sampled_tokens=small)
any_record = st.one_of(
    st.builds(
        RolloutRequest,
        group_id=texts,
        sample_index=small,
        group_size=small,
        task_id=texts,
        seed=st.integers(0, 2**63),
        step=small,
        deadline_s=times,
        agent_timeout_s=times,
    ),
    st.builds(
        Trajectory,
        group_id=texts,
        sample_index=small,
        task_id=texts,
        attempt=facts,
        patch=texts,
        failure=texts,
    ),
    st.builds(
        Verdict,
        group_id=texts,
        sample_index=small,
        task_id=texts,
        attempt=facts,
        trajectory=refs,
        measures=measures,
    ),
    st.builds(Outcome, group_id=texts, task_id=texts, step=small, at=times),
    token_records(),
)


@given(any_record)
def test_a_record_comes_back_as_it_was_sent(record: Record) -> None:
    assert decode(type(record), encode(record)) == record


@given(any_record)
def test_a_record_is_refused_where_another_type_is_expected(record: Record) -> None:
    other = Outcome if not isinstance(record, Outcome) else Verdict
    with pytest.raises(BadRecordError, match=f"{other.__name__}: expected its MessagePack form, got"):
        decode(other, encode(record))


@given(st.binary(max_size=200))
def test_garbage_is_a_bad_record_and_never_another_error(data: bytes) -> None:
    with pytest.raises(BadRecordError, match="Outcome: expected its MessagePack form"):
        decode(Outcome, data)


@given(any_record, st.data())
def test_a_record_that_was_cut_short_is_refused(record: Record, data: st.DataObject) -> None:
    whole = encode(record)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BadRecordError, match=type(record).__name__):
        decode(type(record), whole[:cut])


def test_a_value_outside_its_literal_is_refused() -> None:
    raw = msgspec.msgpack.decode(encode(Outcome(group_id="g", task_id="t", purpose="training", kind="trained")))
    with pytest.raises(BadRecordError, match=r"kind"):
        decode(Outcome, msgspec.msgpack.encode({**raw, "kind": "forgotten"}))


def test_decoded_arrays_share_memory_with_the_bytes_they_came_in() -> None:
    data = encode(make_tokens())
    tokens = decode(TrajectoryTokens, data)
    whole = np.frombuffer(data, "u1")
    assert np.shares_memory(tokens.token_ids.view(), whole)
    assert np.shares_memory(tokens.behaviour_logprobs.view(), whole)


@given(token_records())
def test_every_aligned_record_passes_the_check(tokens: TrajectoryTokens) -> None:
    check_alignment(tokens)
    check_alignment(decode(TrajectoryTokens, encode(tokens)))


@given(token_records(), st.sampled_from(["token_ids", "loss_mask", "behaviour_logprobs", "policy_versions"]))
def test_one_array_of_another_length_is_refused(tokens: TrajectoryTokens, name: str) -> None:
    array = getattr(tokens, name).view()
    longer = Tensor.of(np.append(array, array.dtype.type(0)))
    with pytest.raises(BadRecordError, match=r"trajectory-tokens g1/2: expected arrays of one length, got \["):
        check_alignment(msgspec.structs.replace(tokens, **{name: longer}))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), SENTINEL_LOGPROB, 0.25])
def test_a_sampled_token_needs_a_real_log_probability(bad: float) -> None:
    with pytest.raises(BadRecordError, match="expected finite log-probabilities <= 0"):
        check_alignment(make_tokens(behaviour_logprobs=[0.0, 0.0, -0.5, bad]))


@pytest.mark.parametrize("bad", [float("nan"), SENTINEL_LOGPROB])
def test_a_sentinel_is_refused_on_prompt_tokens_too(bad: float) -> None:
    with pytest.raises(BadRecordError, match="expected finite log-probabilities"):
        check_alignment(make_tokens(behaviour_logprobs=[bad, 0.0, -0.5, -0.5]))


def test_a_mask_holds_zero_and_one_only() -> None:
    with pytest.raises(BadRecordError, match="expected a loss_mask of 0 and 1, got 2"):
        check_alignment(make_tokens(loss_mask=[0, 0, 1, 2]))


def test_a_sampled_token_needs_a_version() -> None:
    with pytest.raises(BadRecordError, match=r"versions of sampled tokens >= 0"):
        check_alignment(make_tokens(policy_versions=[-1, -1, 3, -1]))


def test_token_ids_are_not_negative() -> None:
    with pytest.raises(BadRecordError, match="expected token ids"):
        check_alignment(make_tokens(token_ids=[5, -6, 7, 8]))


def test_arrays_of_another_dtype_are_refused() -> None:
    wrong = Tensor.of(np.array([0.0, 0.0, -0.5, -1.5], "<f4"))
    with pytest.raises(BadRecordError, match="expected dtypes i4 u1 f4 i4, got f4 u1 f4 i4"):
        check_alignment(make_tokens(token_ids=wrong))


def test_bytes_that_are_not_a_whole_number_of_elements_are_refused() -> None:
    broken = Tensor(dtype="i4", length=4, data=memoryview(b"123"))
    with pytest.raises(BadRecordError, match="expected 16 bytes for 4 x i4, got 3"):
        check_alignment(make_tokens(token_ids=broken))


def test_an_attempt_without_tokens_is_aligned() -> None:
    check_alignment(make_tokens(token_ids=[], loss_mask=[], behaviour_logprobs=[], policy_versions=[]))


def test_a_reference_is_written_as_people_write_it() -> None:
    assert str(LogRef(topic="trajectory-tokens", partition=3, offset=118)) == "trajectory-tokens[3]@118"


@pytest.mark.parametrize(
    ("measures", "is_clean"),
    [
        (PatchMeasures(num_added_lines=9, num_files=3), True),
        (PatchMeasures(num_files_out_of_scope=1), False),
        (PatchMeasures(num_dead_statements=1), False),
    ],
)
def test_a_patch_is_clean_without_dead_statement_and_edit_outside_the_task(measures: PatchMeasures, is_clean: bool) -> None:
    assert measures.is_clean is is_clean


def test_a_new_tag_raises_the_number_of_the_format() -> None:
    """Raise RECORDS_FORMAT and this number with a tag that is new."""
    tags = {record.__struct_config__.tag for record in get_args(Record)}
    later = sorted(tag for tag in tags if not str(tag).endswith("/1"))
    assert (len(tags), later, RECORDS_FORMAT) == (11, [], 1)
