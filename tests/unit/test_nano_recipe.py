"""The nano recipe: tokenizer, chat template, sizes, and the whole of it with a tiny configuration."""

import json
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gagar.cli import sft as sft_command
from gagar.nano import recipe
from gagar.nano.demonstrations import demonstrations
from gagar.nano.recipe import build_model, build_tokenizer, example_of, make_policy, prompt_ids
from gagar.nano.tasks import NUM_TASKS, tasks_as_lines
from gagar.nano.tokenizer import END, VOCABULARY_SIZE
from gagar.training.sft import SftConfig

pytestmark = pytest.mark.slow

TINY = SftConfig(num_steps=2, batch_size=2, num_warmup_steps=1)


@cache
def tokenizer() -> Any:
    return build_tokenizer()


def ids_of(text: str) -> list[int]:
    ids: list[int] = tokenizer()(text, add_special_tokens=False)["input_ids"]
    return ids


def decode(ids: list[int]) -> str:
    text: str = tokenizer().decode(ids, clean_up_tokenization_spaces=False)
    return text


@given(text=st.text(max_size=60))
def test_any_text_comes_back_from_its_ids(text: str) -> None:
    assert decode(ids_of(text)) == text


def test_answers_come_back_from_their_ids() -> None:
    for demo in islice(demonstrations(5), 200):
        assert decode(ids_of(demo.answer)) == demo.answer


def test_every_digit_is_a_token_of_its_own() -> None:
    assert [decode([token]) for token in ids_of("n > 1234567890")][2:] == [" ", *"1234567890"]
    multi = [text for text in tokenizer().get_vocab() if len(text) > 1 and any(char in "0123456789" for char in text)]
    assert multi == []


def test_a_quoted_word_is_read_letter_by_letter() -> None:
    assert [decode([token]) for token in ids_of("s.replace('in', 'zq')")] == [
        *("s", ".", "replace", "('"),
        *("i", "n", "',", " '", "z", "q", "')"),
    ]


def test_the_vocabulary_fits_the_recipe() -> None:
    assert 256 < len(tokenizer()) <= VOCABULARY_SIZE
    assert max(tokenizer().get_vocab().values()) == len(tokenizer()) - 1


def test_the_chat_template_renders_a_user_turn_to_the_expected_ids() -> None:
    user, assistant, end = tokenizer().convert_tokens_to_ids(["<|user|>", "<|assistant|>", END])
    statement = "sol.py: f(xs) returns the items above 37"
    assert prompt_ids(tokenizer(), statement) == [user, *ids_of(statement), end, assistant]


def test_a_chat_of_several_turns_keeps_every_role() -> None:
    roles = ["system", "user", "assistant", "user"]
    chat = [{"role": role, "content": role[0]} for role in roles]
    text = tokenizer().apply_chat_template(chat, tokenize=False)
    assert text == "".join(f"<|{role}|>{role[0]}{END}" for role in roles)


def test_an_example_ends_with_the_end_token_once() -> None:
    for demo in islice(demonstrations(), 50):
        example = example_of(tokenizer(), demo)
        assert list(example.answer_ids).index(tokenizer().eos_token_id) == len(example.answer_ids) - 1


def test_prompts_and_answers_are_short() -> None:
    examples = [example_of(tokenizer(), demo) for demo in islice(demonstrations(), 1000)]
    assert sum(len(example.prompt_ids) for example in examples) / 1000 < 22
    assert sum(len(example.answer_ids) for example in examples) / 1000 < 42
    assert max(len(example.answer_ids) for example in examples) <= 65


def test_the_model_has_about_two_million_parameters_and_tied_embeddings() -> None:
    model = build_model(tokenizer())
    assert 1_850_000 < sum(parameter.numel() for parameter in model.parameters()) < 2_000_000
    assert model.lm_head.weight is model.model.embed_tokens.weight


def tiny_model(tokenizer: Any, seed: int) -> Any:
    return build_model(tokenizer, seed, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe with fewer tasks, fewer texts for the tokenizer and a tiny model: its shape, not its size, is tested."""
    monkeypatch.setattr(recipe, "build_model", tiny_model)
    monkeypatch.setattr(recipe, "_NUM_TOKENIZER_TEXTS", 400)
    monkeypatch.setitem(NUM_TASKS, "train", 32)
    monkeypatch.setitem(NUM_TASKS, "heldout", 16)


def check_directory(directory: Path) -> None:
    for part in NUM_TASKS:
        assert (directory / f"{part}.jsonl").read_bytes() == tasks_as_lines(part)
    policy = {path.name for path in (directory / "policy").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= policy
    assert json.loads((directory / "policy" / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.usefixtures("small")
def test_the_recipe_makes_tasks_and_policy(tmp_path: Path) -> None:
    told: list[int] = []
    make_policy(tmp_path / "nano", 0, TINY, lambda progress: told.append(progress.step))
    assert told == [1, 2]
    check_directory(tmp_path / "nano")


@pytest.mark.usefixtures("small")
def test_the_command_makes_tasks_and_policy_and_measures_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "NANO_SFT", TINY)
    monkeypatch.setattr("gagar.nano.evaluation.MAX_NEW_TOKENS", 2)
    arguments = ["policy", "--recipe", "nano", "--out", str(tmp_path / "nano"), "--threads", "1", "--evaluate"]
    result = CliRunner().invoke(sft_command.sft, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    check_directory(tmp_path / "nano")
    assert "sft step=2/2 loss=" in result.output
    assert "sft evaluated part=train attempts=256 pass=0.000" in result.output
    assert "sft evaluated part=heldout attempts=128 pass=0.000" in result.output


def test_an_unknown_recipe_is_refused() -> None:
    result = CliRunner().invoke(sft_command.sft, ["policy", "--recipe", "micro", "--out", "x"])
    assert result.exit_code == 2
    assert "'micro' is not 'nano'" in result.output
