"""Chats as token ids: a Hugging Face tokenizer with its chat template.

Sampled ids are never re-tokenised. The next turn's context is the ids so far and those of `render_turn`: what the template puts
between the end token of a completion and the next completion.
"""

from pathlib import Path
from typing import Any, Protocol

from gagar.errors import ConfigError

OPENING = {"role": "user", "content": "opening"}
ANSWER = "gagar-answer-7f3a"
"""Stands for a completion while the template's text around it is found."""


class Chat(Protocol):
    """Chats as token ids."""

    def open(self) -> None:
        """Loads what it needs, once; blocks for seconds. Raises ConfigError if the model has no chat template."""

    def render(self, messages: list[dict[str, str]], /) -> list[int]:
        """Token ids of a chat up to where the assistant speaks."""

    def render_turn(self, content: str, /) -> list[int]:
        """Token ids between the end token of a completion and the next completion, with a user message in between."""

    def decode(self, token_ids: list[int], /) -> str:
        """Text of sampled ids, special tokens left out."""


class ChatTemplate:
    """The Chat of one model directory, by its tokenizer's template."""

    def __init__(self, path: Path) -> None:
        """`path`: the model directory."""
        self.path = path
        self._tokenizer: Any = None
        self._specials: list[str] = []

    def open(self) -> None:
        if self._tokenizer is not None:
            return
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(self.path), local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"policy.path {self.path}: expected a tokenizer, got {error}") from error
        if not self._tokenizer.chat_template:
            raise ConfigError(f"policy.path {self.path}: expected a chat template beside the tokenizer, got none")
        added = {token.content for token in self._tokenizer.added_tokens_decoder.values() if token.special}
        specials = added.union(self._tokenizer.all_special_tokens)
        self._specials = sorted((token for token in specials if len(token) > 1), key=len, reverse=True)

    @property
    def end_token_id(self) -> int | None:
        """The tokenizer's end token."""
        end: int | None = self._tokenizer.eos_token_id
        return end

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        return self._ids(self._text([{**message, "content": self._defuse(message["content"])} for message in messages]))

    def render_turn(self, content: str) -> list[int]:
        answered = [OPENING, {"role": "assistant", "content": ANSWER}]
        text = self._text([*answered, {"role": "user", "content": self._defuse(content)}])
        following = text.partition(ANSWER)[2]
        end = self._tokenizer.eos_token or ""
        return self._ids(following.removeprefix(end))

    def decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _text(self, messages: list[dict[str, str]]) -> str:
        text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _defuse(self, content: str) -> str:
        """Content with a space inside every special token: what a file or a command prints must not speak for the template."""
        for token in self._specials:
            if token in content:
                content = content.replace(token, f"{token[0]} {token[1:]}")
        return content
