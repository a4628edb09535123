"""The tokenizer of the nano policy: byte-level BPE of at most 1,024 from demonstrations, every digit a token of its own.

A space belongs to the word or sign after it, a line break to the indentation after it. A two-letter word in quotes is read
letter by letter, since words that no training saw must look like those that it saw. The chat template puts each message
between its role's token and the end token, and the assistant's token where the assistant is to speak.
"""

from collections.abc import Iterable
from typing import Any

VOCABULARY_SIZE = 1024
MAX_POSITIONS = 1024
PAD, END = "<|pad|>", "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = [PAD, END, *(f"<|{role}|>" for role in ROLES)]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_QUOTED_WORD = r"(?<=')[a-z](?=[a-z]')|(?<='[a-z])[a-z](?=')"
_WORDS = _QUOTED_WORD + r"|\d| ?[A-Za-z_]+| ?[^\sA-Za-z_\d]+|\n *|\s"


def train_tokenizer(texts: Iterable[str]) -> Any:
    """A `PreTrainedTokenizerFast` learned from `texts`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
