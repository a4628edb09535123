"""The transformers engine as its callers see it: completions, live weights, refusals, cancelled calls, faults."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from gagar.engine.protocol import Completion, Engine, SamplingParams
from gagar.engine.transformers import TransformersEngine, load_model
from gagar.errors import ConfigError, UnavailableError
from gagar.policies.chat_template import ChatTemplate
from tests.rollouts import build_model

pytestmark = pytest.mark.slow

PROMPT = [10, 20, 30, 40]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories `one` and `two` of the same model with other weights, and `wide` of another."""
    root = tmp_path_factory.mktemp("models")
    build_model(root / "one", seed=1)
    build_model(root / "two", seed=2)
    build_model(root / "wide", hidden_size=64)
    return root


@pytest.fixture
async def engine(models: Path) -> AsyncIterator[TransformersEngine]:
    opened = TransformersEngine(ChatTemplate(models / "one"), max_running=16, device="cpu")
    await opened.open()
    yield opened
    await opened.close()


def params(seed: int = 0, max_new_tokens: int = 8, temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(seed=seed, max_new_tokens=max_new_tokens, temperature=temperature)


def assert_sampled_from(directory: Path, prompt: list[int], completion: Completion) -> None:
    ids = torch.tensor([prompt + completion.token_ids])
    with torch.inference_mode():
        logprobs = torch.log_softmax(load_model(directory, "cpu")(input_ids=ids).logits[0], dim=-1)
    first = len(prompt) - 1
    expected = logprobs[first:-1].gather(1, ids[0, first + 1 :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


async def test_it_is_an_engine_and_starts_without_a_published_version(engine: TransformersEngine) -> None:
    port: Engine = engine
    assert port.policy_version == -1


async def test_concurrent_callers_each_get_what_the_model_gives_them_alone(engine: TransformersEngine, models: Path) -> None:
    together = await asyncio.gather(*(engine.generate([*PROMPT, seed], params(seed, 5 + seed)) for seed in range(20)))
    alone = [await engine.generate([*PROMPT, seed], params(seed, 5 + seed)) for seed in range(20)]
    assert [completion.token_ids for completion in together] == [completion.token_ids for completion in alone]
    for seed, completion in enumerate(together):
        assert_sampled_from(models / "one", [*PROMPT, seed], completion)


async def test_new_weights_count_from_the_next_token_on(engine: TransformersEngine, models: Path) -> None:
    await engine.load_weights(models / "two", 4)
    completion = await engine.generate(PROMPT, params())
    assert engine.policy_version == 4
    assert set(completion.policy_versions) == {4}
    assert_sampled_from(models / "two", PROMPT, completion)


async def test_weights_loaded_in_mid_generation_flip_the_versions_once_each(engine: TransformersEngine, models: Path) -> None:
    await engine.load_weights(models / "one", 0)
    engine._batch._stop_ids = frozenset()
    task = asyncio.create_task(engine.generate(PROMPT, params(max_new_tokens=400)))
    version = 0
    while not task.done():
        version += 1
        await engine.load_weights(models / ("two" if version % 2 else "one"), version)
    versions = (await task).policy_versions
    assert versions == sorted(versions)
    assert len(set(versions)) >= 2
    assert len(versions) == 400


@pytest.mark.parametrize("what", ["wide", "missing"])
async def test_weights_that_cannot_be_loaded_leave_the_old_ones(engine: TransformersEngine, models: Path, what: str) -> None:
    await engine.load_weights(models / "two", 3)
    with pytest.raises((ConfigError, UnavailableError), match="expected"):
        await engine.load_weights(models / what, 4)
    assert engine.policy_version == 3
    assert_sampled_from(models / "two", PROMPT, await engine.generate(PROMPT, params()))


async def test_a_cancelled_call_frees_its_place(models: Path) -> None:
    engine = TransformersEngine(ChatTemplate(models / "one"), max_running=1, device="cpu")
    await engine.open()
    engine._batch._stop_ids = frozenset()
    long = asyncio.create_task(engine.generate(PROMPT, params(max_new_tokens=500)))
    await asyncio.sleep(0)
    long.cancel()
    completion = await engine.generate(PROMPT, params(max_new_tokens=2))
    assert len(completion.token_ids) == 2
    assert long.cancelled()
    assert engine._futures == {}
    await engine.close()


async def test_the_queue_is_told_apart_from_the_sampling(models: Path) -> None:
    """One place: the second call waits for as long as the first samples, and at its deadline has not begun."""
    engine = TransformersEngine(ChatTemplate(models / "one"), max_running=1, device="cpu")
    await engine.open()
    engine._batch._stop_ids = frozenset()
    start = time.monotonic()
    first = asyncio.create_task(engine.generate(PROMPT, SamplingParams(max_new_tokens=500, timeout_s=0.15)))
    await asyncio.sleep(0)
    starved = asyncio.create_task(engine.generate(PROMPT, SamplingParams(max_new_tokens=2, deadline_s=0.05)))
    second = await engine.generate(PROMPT, SamplingParams(max_new_tokens=2, timeout_s=60.0))
    call_s = time.monotonic() - start
    assert ((await first).finish, second.finish, (await starved).finish) == ("time", "length", "time")
    assert (await first).sampling_s >= 0.15
    assert 0 < second.sampling_s < call_s - 0.1
    assert ((await starved).token_ids, (await starved).sampling_s) == ([], 0.0)
    await engine.close()


async def test_the_context_bounds_what_is_sampled(engine: TransformersEngine) -> None:
    engine._batch._stop_ids = frozenset()
    near = await engine.generate([5] * 509, params(max_new_tokens=50))
    over = await engine.generate([5] * 512, params())
    assert (len(near.token_ids), near.finish) == (3, "length")
    assert (over.token_ids, over.finish) == ([], "length")


@pytest.mark.parametrize("prompt", [[], [-1], [260]])
async def test_a_prompt_outside_the_vocabulary_is_refused(engine: TransformersEngine, prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="prompt_ids: expected"):
        await engine.generate(prompt, params())


async def test_a_temperature_of_zero_is_refused(engine: TransformersEngine) -> None:
    with pytest.raises(ValueError, match="temperature: expected more than 0"):
        await engine.generate(PROMPT, params(temperature=0.0))


async def test_a_failed_step_fails_its_callers_only(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(version: int) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(engine._batch, "step", fail)
        with pytest.raises(UnavailableError, match="out of memory"):
            await engine.generate(PROMPT, params())
    assert (await engine.generate(PROMPT, params())).token_ids


async def test_closing_fails_those_that_wait_and_later_calls(models: Path) -> None:
    engine = TransformersEngine(ChatTemplate(models / "one"), device="cpu")
    await engine.open()
    engine._batch._stop_ids = frozenset()
    waiting = asyncio.create_task(engine.generate(PROMPT, params(max_new_tokens=500)))
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(UnavailableError, match="closed"):
        await waiting
    with pytest.raises(UnavailableError, match="expected a running decode loop"):
        await engine.generate(PROMPT, params())
    with pytest.raises(UnavailableError, match="expected a running decode loop"):
        await engine.load_weights(models / "two", 1)
    await engine.close()


async def test_a_directory_without_a_model_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.path .*: expected a tokenizer"):
        await TransformersEngine(ChatTemplate(tmp_path), device="cpu").open()


def test_a_model_without_weights_for_a_layer_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = build_model(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="expected weights for the whole model"):
        load_model(tmp_path, "cpu")


def test_a_sliding_window_model_is_refused(tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = MistralConfig(**sizes, intermediate_size=16, vocab_size=8, sliding_window=4)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="expected full attention in every layer"):
        load_model(tmp_path, "cpu")
