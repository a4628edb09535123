"""Supervised fine-tuning: only answers count, padding changes nothing, a few steps reduce the loss."""

import math
from collections.abc import Iterator
from itertools import cycle

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gagar.training.sft import IGNORED_LABEL, Example, SftConfig, SftProgress, collate, learning_rate_at, train

pytestmark = pytest.mark.slow

PAD = 0


def tiny_model() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model: torch.nn.Module = LlamaForCausalLM(LlamaConfig(vocab_size=12, tie_word_embeddings=True, pad_token_id=PAD, **sizes))
    return model


def examples() -> Iterator[Example]:
    return cycle([Example(prompt_ids=[1, n], answer_ids=[n, n, 11]) for n in range(2, 10)])


def test_labels_are_answers_only_and_padding_is_on_the_right() -> None:
    ids, labels = collate(
        [Example(prompt_ids=[1, 2], answer_ids=[3]), Example(prompt_ids=[4], answer_ids=[5, 6, 7])], pad_id=PAD
    )
    no = IGNORED_LABEL
    assert ids.tolist() == [[1, 2, 3, PAD], [4, 5, 6, 7]]
    assert labels.tolist() == [[no, no, 3, no], [no, 5, 6, 7]]


def test_a_few_steps_reduce_the_loss_and_each_is_reported() -> None:
    told: list[SftProgress] = []
    config = SftConfig(num_steps=40, batch_size=8, learning_rate=1e-2, num_warmup_steps=4)
    last = train(tiny_model(), examples(), config, PAD, told.append)
    assert [progress.step for progress in told] == list(range(1, 41))
    assert told[0].loss == pytest.approx(math.log(12), rel=0.1)
    assert last == told[-1]
    assert last.loss < 0.5 * told[0].loss
    assert last.num_tokens == 40 * 8 * 3


def test_the_same_seed_trains_the_same_model() -> None:
    config = SftConfig(num_steps=3, batch_size=4, num_warmup_steps=1)
    models = [tiny_model(), tiny_model()]
    losses = [train(model, examples(), config, PAD).loss for model in models]
    assert losses[0] == losses[1]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_loss_of_a_batch_does_not_depend_on_padding() -> None:
    config = SftConfig(num_steps=1, batch_size=1)
    short, long = Example(prompt_ids=[1], answer_ids=[2, 3]), Example(prompt_ids=[1] * 5, answer_ids=[2] * 5)
    alone = train(tiny_model(), iter([short]), config, PAD).loss
    other = train(tiny_model(), iter([long]), config, PAD).loss
    both = train(tiny_model(), iter([short, long]), SftConfig(num_steps=1, batch_size=2), PAD).loss
    assert both == pytest.approx((2 * alone + 5 * other) / 7, rel=1e-5)


def test_the_learning_rate_rises_then_falls_to_nothing() -> None:
    config = SftConfig(num_steps=100, learning_rate=1.0, num_warmup_steps=10)
    rates = [learning_rate_at(step, config) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[9] == max(rates) == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.001
    assert learning_rate_at(100, config) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_steps": 0}, "sft.num_steps: expected 1 or more, got 0"),
        ({"batch_size": 0}, "sft.batch_size: expected 1 or more, got 0"),
        ({"learning_rate": 0.0}, "sft.learning_rate: expected more than 0, got 0.0"),
    ],
)
def test_impossible_numbers_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SftConfig(**change)  # type: ignore[arg-type]
