"""Measures a nano policy without the pipeline: samples groups at temperature 1, tries them, counts what passes and its style.

In: a model directory and tasks. Out: `NanoScore`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gagar.nano.check import Attempt, check
from gagar.nano.demonstrations import STYLES, Style, parse_answer
from gagar.nano.recipe import prompt_ids
from gagar.policies.model_directory import read_model
from gagar.tasks.task import Task

MAX_NEW_TOKENS = 80
_BATCH = 128


class NanoScore(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy does on tasks."""

    num_attempts: int
    pass_rate: float
    mixed_share: float
    """Of the groups: some attempts pass, some do not."""
    styles: dict[Style, float]
    """Shares among passing attempts."""
    mean_tokens: float
    """Sampled, the end token included."""
    max_tokens: int
    unreadable_share: float
    """Of the attempts: not in the form of the demonstrations."""

    def __str__(self) -> str:
        styles = " ".join(f"{name}={share:.2f}" for name, share in self.styles.items())
        return (
            f"attempts={self.num_attempts} pass={self.pass_rate:.3f} mixed={self.mixed_share:.3f} {styles} "
            f"tokens={self.mean_tokens:.1f} max_tokens={self.max_tokens} unreadable={self.unreadable_share:.4f}"
        )


def load_policy(directory: Path) -> tuple[Any, Any]:
    """Model (float32) and tokenizer of a directory."""
    import torch
    from transformers import AutoTokenizer

    return read_model(directory, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(directory)


def sample(model: Any, tokenizer: Any, statements: Sequence[str], seed: int = 0) -> list[list[int]]:
    """One answer's token ids for each statement, at temperature 1."""
    import torch

    torch.manual_seed(seed)
    answers: list[list[int]] = []
    for start in range(0, len(statements), _BATCH):
        prompts = [prompt_ids(tokenizer, statement) for statement in statements[start : start + _BATCH]]
        batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            out = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=MAX_NEW_TOKENS)
        answers += [_up_to_end(row, tokenizer) for row in out[:, batch["input_ids"].shape[1] :].tolist()]
    return answers


def _up_to_end(ids: list[int], tokenizer: Any) -> list[int]:
    end = tokenizer.eos_token_id
    return ids[: ids.index(end) + 1] if end in ids else ids


def style_of(code: str, extra_command: str) -> Style:
    """Style of an answer, by its form: an extra command, or more than one statement."""
    if extra_command:
        return "outside"
    return "clean" if len(code.splitlines()) == 2 else "dead code"


def score(model: Any, tokenizer: Any, tasks: Sequence[Task], group_size: int = 8, seed: int = 0) -> NanoScore:
    """Samples `group_size` answers to each task and tries them."""
    repeated = [task for task in tasks for _ in range(group_size)]
    answers = sample(model, tokenizer, [task.statement for task in repeated], seed)
    parsed = [parse_answer(tokenizer.decode(ids, skip_special_tokens=True)) for ids in answers]
    passed = check([Attempt(code=p[0] if p else "", task=task) for p, task in zip(parsed, repeated, strict=True)])
    lengths = [len(ids) for ids in answers]
    return NanoScore(
        num_attempts=len(passed),
        pass_rate=sum(passed) / len(passed),
        mixed_share=_mixed_share(passed, group_size),
        styles=_style_shares([p for p, is_passed in zip(parsed, passed, strict=True) if p and is_passed]),
        mean_tokens=sum(lengths) / len(lengths),
        max_tokens=max(lengths),
        unreadable_share=parsed.count(None) / len(parsed),
    )


def _mixed_share(passed: Sequence[bool], group_size: int) -> float:
    groups = [passed[start : start + group_size] for start in range(0, len(passed), group_size)]
    return sum(any(group) and not all(group) for group in groups) / len(groups)


def _style_shares(parsed: Sequence[tuple[str, str]]) -> dict[Style, float]:
    styles = [style_of(code, extra) for code, extra in parsed]
    return {style: styles.count(style) / max(1, len(styles)) for style in STYLES}
