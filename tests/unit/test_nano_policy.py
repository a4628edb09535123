"""The shipped policy: within its limits, loads as float32, and already solves some tasks in the agent's protocol."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gagar
from gagar.nano.demonstrations import STYLES, parse_answer
from gagar.nano.evaluation import MAX_NEW_TOKENS, load_policy, sample, score, style_of
from gagar.tasks.jsonl import JsonlTasks

pytestmark = pytest.mark.slow

NANO = Path(gagar.__file__).parent / "data" / "nano"
POLICY = NANO / "policy"


@cache
def loaded() -> tuple[Any, Any]:
    return load_policy(POLICY)


def test_the_shipped_files_fit_their_limits() -> None:
    assert sum(path.stat().st_size for path in POLICY.rglob("*") if path.is_file()) <= 10_000_000
    assert sum(path.stat().st_size for path in NANO.glob("*.jsonl")) <= 1_000_000


def test_the_policy_says_nothing_of_the_machine_that_made_it() -> None:
    for path in POLICY.glob("*.json"):
        assert not re.search(r"/(?:home|root|tmp|work)/", path.read_text()), path.name


def test_the_tokenizer_configuration_is_one_that_transformers_4_reads_too() -> None:
    config = json.loads((POLICY / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["model_max_length"] == loaded()[0].config.max_position_embeddings
    assert "extra_special_tokens" not in config


def test_the_policy_is_float32_and_covers_its_vocabulary() -> None:
    model, tokenizer = loaded()
    assert {str(parameter.dtype) for parameter in model.parameters()} == {"torch.float32"}
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_the_policy_solves_some_of_a_few_held_out_tasks_and_not_all() -> None:
    model, tokenizer = loaded()
    scored = score(model, tokenizer, JsonlTasks(NANO / "heldout.jsonl").all()[:16], group_size=4)
    assert scored.num_attempts == 64
    assert 0.1 <= scored.pass_rate <= 0.7
    assert scored.max_tokens <= MAX_NEW_TOKENS
    assert scored.unreadable_share < 0.1


def test_sampled_answers_are_in_the_form_of_the_protocol() -> None:
    model, tokenizer = loaded()
    answers = sample(model, tokenizer, ["sol.py: f(n) returns n modulo 12"] * 16)
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]
    assert sum(parse_answer(text) is not None for text in texts) >= 14
    assert len(set(texts)) > 4


@pytest.mark.parametrize(
    ("code", "extra", "style"),
    [
        ("def f(n):\n    return n\n", "", "clean"),
        ("def f(n):\n    n = n\n    return n\n", "", "dead code"),
        ("def f(n):\n    return n\n", "echo done > log.txt", "outside"),
    ],
)
def test_the_style_of_an_answer_is_told_by_its_form(code: str, extra: str, style: str) -> None:
    assert style_of(code, extra) == style
    assert style in STYLES
