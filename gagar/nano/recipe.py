"""The recipe of the nano policy: demonstrations, tokenizer, a Llama of about two million parameters, 1000 steps, one directory.

In: a directory and a seed. Out, there: `train.jsonl`, `heldout.jsonl` and `policy/` in Hugging Face format.
"""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from gagar.nano.demonstrations import Demonstration, demonstrations
from gagar.nano.tasks import write_tasks
from gagar.nano.tokenizer import MAX_POSITIONS, train_tokenizer
from gagar.policies.model_directory import write_model
from gagar.training.sft import Example, SftConfig, SftProgress, train

NANO_SFT = SftConfig()
_NUM_TOKENIZER_TEXTS = 8000


def build_tokenizer(seed: int = 0) -> Any:
    """The tokenizer, learned from the first demonstrations."""
    demos = islice(demonstrations(seed), _NUM_TOKENIZER_TEXTS)
    return train_tokenizer(text for demo in demos for text in (demo.exercise.statement, demo.answer))


def build_model(tokenizer: Any, seed: int = 0, **changes: int) -> Any:
    """An untrained model for the tokenizer; `changes` override sizes (for tests)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 512} | changes
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **sizes,
    )
    return LlamaForCausalLM(config)


def prompt_ids(tokenizer: Any, statement: str) -> list[int]:
    """The chat of one user message, up to where the assistant speaks."""
    message = [{"role": "user", "content": statement}]
    ids: list[int] = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
    return ids


def example_of(tokenizer: Any, demo: Demonstration) -> Example:
    """A demonstration as token ids."""
    answer_ids = tokenizer(demo.answer, add_special_tokens=False)["input_ids"]
    return Example(
        prompt_ids=prompt_ids(tokenizer, demo.exercise.statement),
        answer_ids=[*answer_ids, tokenizer.eos_token_id],
    )


def examples(tokenizer: Any, seed: int = 0) -> Iterator[Example]:
    """Training examples for ever, the same ones for the same seed."""
    return (example_of(tokenizer, demo) for demo in demonstrations(seed))


def save_policy(model: Any, tokenizer: Any, directory: Path) -> None:
    """Writes a Hugging Face directory that transformers 4 and 5 read; no field of it is of the machine that made it."""
    model.generation_config.do_sample = True
    write_model(model, directory)
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # transformers 5 writes a class that 4 does not know, and both know this one.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def make_policy(
    directory: Path,
    seed: int = 0,
    config: SftConfig = NANO_SFT,
    report: Callable[[SftProgress], None] = lambda progress: None,
) -> SftProgress:
    """The whole recipe; about five minutes on two cores."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tasks(directory, seed)
    tokenizer = build_tokenizer(seed)
    model = build_model(tokenizer, seed)
    last = train(model, examples(tokenizer, seed), config, tokenizer.pad_token_id, report)
    save_policy(model, tokenizer, directory / "policy")
    return last
