"""The decode loop: exact log-probabilities at any batch composition, versions, seeds, ends."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gagar.engine.decoding import JOIN_STEPS, DecodeBatch, Generation, sample
from gagar.engine.transformers import load_model
from tests.rollouts import build_model

pytestmark = pytest.mark.slow

NEVER: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_model(build_model(tmp_path_factory.mktemp("model")), "cpu")


def make_generation(prompt: list[int], seed: int = 0, max_new_tokens: int = 10, **fields: Any) -> Generation:
    defaults: dict[str, Any] = {"temperature": 1.0, "random": random.Random(seed)}
    return Generation(prompt_ids=prompt, max_new_tokens=max_new_tokens, **{**defaults, **fields})


def make_batch(model: Any, stop_ids: frozenset[int] = NEVER, max_rows: int = 8, max_cache_tokens: int = 1 << 16) -> DecodeBatch:
    return DecodeBatch(model, stop_ids, max_rows, max_cache_tokens)


def run(batch: DecodeBatch, *generations: Generation, version: int = 0) -> list[Generation]:
    batch.submit(generations)
    ended: list[Generation] = []
    while not batch.is_idle:
        ended += batch.step(version)
    return ended


def full_logprobs(model: Any, generation: Generation) -> torch.Tensor:
    """Of the sampled tokens, by one forward pass over the whole sequence."""
    ids = torch.tensor([generation.prompt_ids + generation.token_ids])
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0] / generation.temperature, dim=-1)
    first = len(generation.prompt_ids) - 1
    return logprobs[first:-1].gather(1, ids[0, first + 1 :, None])[:, 0]


def many_generations(count: int = 11) -> list[Generation]:
    rng = random.Random(5)
    prompts = [[rng.randrange(2, 258) for _ in range(rng.choice([1, 2, 7, 30]))] for _ in range(count)]
    return [
        make_generation(prompt, seed, max_new_tokens=3 + 9 * (seed % 4), temperature=[1.0, 0.7, 1.3][seed % 3])
        for seed, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("max_rows", [1, 3, 8, 64])
def test_batched_log_probabilities_are_those_of_one_full_forward_pass(model: Any, max_rows: int) -> None:
    ended = run(make_batch(model, max_rows=max_rows), *many_generations())
    assert len(ended) == 11
    for generation in ended:
        assert len(generation.token_ids) == len(generation.logprobs) == generation.max_new_tokens
        torch.testing.assert_close(torch.tensor(generation.logprobs), full_logprobs(model, generation), atol=1e-4, rtol=0)


def test_members_of_a_group_share_a_prefill_and_sample_apart(model: Any) -> None:
    group = [make_generation([5, 6, 7, 8], seed, max_new_tokens=20) for seed in range(4)]
    run(make_batch(model), *group, make_generation([9]))
    assert len({tuple(member.token_ids) for member in group}) == 4
    for member in group:
        torch.testing.assert_close(torch.tensor(member.logprobs), full_logprobs(model, member), atol=1e-4, rtol=0)


def test_the_same_seed_samples_the_same_alone_or_in_company(model: Any) -> None:
    alone = many_generations()
    for generation in alone:
        run(make_batch(model), generation)
    company = many_generations()
    run(make_batch(model, max_rows=5), *reversed(company))
    assert [generation.token_ids for generation in alone] == [generation.token_ids for generation in company]


def test_the_version_flips_with_the_weights_and_the_cache_of_running_ones_stays(tmp_path: Path) -> None:
    live = load_model(build_model(tmp_path / "old"), "cpu")
    old = load_model(tmp_path / "old", "cpu")
    new = load_model(build_model(tmp_path / "new", seed=1), "cpu")
    batch, generation = make_batch(live), make_generation([3, 4, 5], max_new_tokens=5)
    batch.submit([generation])
    for _ in range(3):
        batch.step(7)
    live.load_state_dict(new.state_dict())
    for _ in range(2):
        batch.step(8)
    assert generation.policy_versions == [7, 7, 7, 8, 8]
    before = make_generation([3, 4, 5], token_ids=generation.token_ids[:3])
    torch.testing.assert_close(torch.tensor(generation.logprobs[:3]), full_logprobs(old, before), atol=1e-4, rtol=0)
    seen = [3, 4, 5, *generation.token_ids]
    with torch.inference_mode():
        cache = old(input_ids=torch.tensor([seen[:5]]), use_cache=True).past_key_values
        logits = new(input_ids=torch.tensor([seen[5:6]]), past_key_values=cache).logits[0, -1]
    expected = torch.log_softmax(logits, dim=-1)[seen[6]].item()
    assert generation.logprobs[3] == pytest.approx(expected, abs=1e-4)


def test_an_end_token_ends_and_is_kept(model: Any) -> None:
    probe = make_generation([2, 3], max_new_tokens=12)
    run(make_batch(model), probe)
    stop = probe.token_ids[4]
    again = make_generation([2, 3], max_new_tokens=12)
    run(make_batch(model, stop_ids=frozenset([stop])), again)
    assert again.token_ids == probe.token_ids[: probe.token_ids.index(stop) + 1]
    assert (again.finish, probe.finish) == ("stop", "length")


def test_a_cancelled_generation_is_dropped_and_its_place_is_free(model: Any) -> None:
    batch = make_batch(model, max_rows=1)
    first, second = make_generation([2], max_new_tokens=100), make_generation([3], max_new_tokens=2)
    batch.submit([first, second])
    batch.step(0)
    first.is_cancelled = True
    ended = [generation for _ in range(2) for generation in batch.step(0)]
    assert ended == [second]
    assert batch.is_idle
    assert len(first.token_ids) == 1


def test_a_cancelled_one_that_waits_never_runs(model: Any) -> None:
    waiting = make_generation([2], is_cancelled=True)
    assert run(make_batch(model), waiting) == []
    assert waiting.token_ids == []


def test_at_its_deadline_a_generation_ends_with_what_it_has(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    batch, generation = make_batch(model), make_generation([2], deadline=1001.0, max_new_tokens=100)
    batch.submit([generation])
    batch.step(0)
    batch.step(0)
    now = 1001.0
    assert batch.step(0) == [generation]
    assert (generation.finish, len(generation.token_ids)) == ("time", 2)
    assert generation.completion().sampling_s == 1.0


def test_time_in_the_queue_counts_for_the_deadline_and_not_for_the_time_out(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    batch = make_batch(model, max_rows=1)
    first, second = (make_generation([2], timeout_s=5.0, max_new_tokens=100) for _ in range(2))
    third = make_generation([2], deadline=1007.0, timeout_s=5.0)
    batch.submit([first, second, third])
    batch.step(0)
    for at, ended in ((1004.0, []), (1005.0, [first]), (1007.0, [third]), (1009.0, []), (1010.0, [second])):
        now = at
        assert batch.step(0) == ended
    assert [len(generation.token_ids) for generation in (first, second, third)] == [2, 3, 0]
    assert [(it.finish, it.completion().sampling_s) for it in (first, second, third)] == [
        ("time", 5.0),
        ("time", 5.0),
        ("time", 0.0),
    ]


def test_a_single_newcomer_joins_a_full_batch_within_a_few_steps(model: Any) -> None:
    batch = make_batch(model, max_rows=64)
    batch.submit([make_generation([seed + 2], seed, max_new_tokens=100) for seed in range(32)])
    batch.step(0)
    late = make_generation([40], max_new_tokens=100)
    batch.submit([late])
    for _ in range(JOIN_STEPS):
        batch.step(0)
    assert len(late.token_ids) == 1


def test_the_cache_bound_makes_generations_wait_but_none_for_ever(model: Any) -> None:
    batch = make_batch(model, max_cache_tokens=40)
    generations = [make_generation([2, 3, 4], seed, max_new_tokens=17) for seed in range(5)]
    batch.submit([*generations, make_generation([5], max_new_tokens=100)])
    batch.step(0)
    assert [len(generation.token_ids) for generation in generations] == [1, 1, 0, 0, 0]
    num_ended = 0
    while not batch.is_idle:
        num_ended += len(batch.step(0))
    assert num_ended == 6


def test_giving_up_returns_all_and_the_batch_works_on(model: Any) -> None:
    batch = make_batch(model, max_rows=1)
    batch.submit([make_generation([2]), make_generation([3])])
    batch.step(0)
    assert len(batch.clear()) == 2
    assert batch.is_idle
    after, reference = make_generation([9, 10, 11]), make_generation([9, 10, 11])
    run(batch, after)
    run(make_batch(model), reference)
    assert after.token_ids == reference.token_ids


@settings(max_examples=40)
@given(st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=12), st.floats(0.25, 4.0))
def test_evenly_spread_points_meet_each_token_by_its_probability(row: list[float], temperature: float) -> None:
    count = 4000
    logits = torch.tensor(row).expand(count, -1)
    points = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    token_ids, logprobs = sample(logits, torch.full((count,), temperature), points)
    expected = torch.softmax(logits[0].double() / temperature, dim=-1)
    got = torch.bincount(token_ids, minlength=len(row)) / count
    assert (got - expected).abs().max() <= 1.5 / count + 1e-5
    torch.testing.assert_close(logprobs.double(), expected.log()[token_ids], atol=1e-4, rtol=0)


def test_a_token_of_no_probability_is_never_sampled() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]).expand(3, -1)
    token_ids, _ = sample(logits, torch.ones(3), torch.tensor([0.0, 0.5, 1 - 2.0**-52], dtype=torch.float64))
    assert token_ids.tolist() == [1, 3, 3]
