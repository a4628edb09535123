"""The trajectories that the bench sends are what it says of them."""

import pytest

from gagar.records import LogRef, check_alignment, encode
from gagar.training.batch import check_trainable
from tests.bench.contents import NUM_TOKENS, VOCAB_SIZE, Content, make_pool
from tests.builders import make_request

REQUEST = make_request("t-000007", 3)


@pytest.fixture(scope="module")
def pool() -> list[Content]:
    return make_pool(3)


def test_token_records_are_416_kilobytes_of_arrays_that_a_learner_takes(pool: list[Content]) -> None:
    for content in pool:
        tokens = content.tokens_for(REQUEST)
        check_alignment(tokens)
        check_trainable(tokens, VOCAB_SIZE, NUM_TOKENS, content.num_sampled)
        assert len(encode(tokens)) == pytest.approx(416_000, rel=0.01)
        assert 0.5 < content.num_sampled / NUM_TOKENS < 0.75


def test_transcripts_are_a_hundred_kilobytes_in_turns(pool: list[Content]) -> None:
    for content in pool:
        trajectory = content.trajectory_for(
            REQUEST, LogRef(topic="r", partition=0, offset=0), LogRef(topic="t", partition=0, offset=0)
        )
        assert (trajectory.group_id, trajectory.sample_index) == ("t-000007", 3)
        assert len(encode(trajectory)) == pytest.approx(100_000, rel=0.1)
        assert {message.role for message in trajectory.messages[0::2]} == {"user"}
        assert {message.role for message in trajectory.messages[1::2]} == {"assistant"}


def test_they_compress_like_transcripts_and_unlike_noise_or_zeros(pool: list[Content]) -> None:
    import cramjam

    data = b"".join(encode(content.tokens_for(REQUEST)) for content in pool)
    assert 0.2 < len(cramjam.zstd.compress(data)) / len(data) < 0.5


def test_a_pool_is_the_same_each_time_and_its_members_differ(pool: list[Content]) -> None:
    assert [encode(content.tokens) for content in make_pool(3)] == [encode(content.tokens) for content in pool]
    assert len({encode(content.tokens) for content in pool}) == 3
