"""Trajectories of realistic content: 32k tokens in 416 kB of arrays, and about 100 kB of transcript.

The text is source code of the standard library, cut into turns; a token is a word, a sign or a gap of that very text, so ids
repeat as they do in a transcript. Two thirds of the tokens are sampled; their log-probabilities are mostly near zero and
compress as badly as real ones.
"""

import random
import re
import sysconfig
import zlib
from pathlib import Path

import msgspec
import numpy as np

from gagar.arrays import Tensor
from gagar.records import AttemptFacts, LogRef, Message, RolloutRequest, Trajectory, TrajectoryTokens

NUM_TOKENS = 32_000
TEXT_CHARS = 98_000
PATCH_CHARS = 2_000
VOCAB_SIZE = 150_000
PROMPT_TOKENS = 2_000
POOL_SIZE = 32
"""Different trajectories; they are sent in turn."""
PIECE = re.compile(r" ?\w+|\s+|[^\w\s]", re.ASCII)


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """All of an attempt that does not depend on its request."""

    tokens: TrajectoryTokens
    messages: list[Message]
    patch: str
    num_sampled: int

    def tokens_for(self, request: RolloutRequest) -> TrajectoryTokens:
        return msgspec.structs.replace(self.tokens, group_id=request.group_id, sample_index=request.sample_index)

    def trajectory_for(self, request: RolloutRequest, at: LogRef, tokens: LogRef) -> Trajectory:
        return Trajectory(
            group_id=request.group_id,
            sample_index=request.sample_index,
            attempt=AttemptFacts(
                request=at,
                tokens=tokens,
                status="completed",
                num_turns=len(self.messages) // 2,
                num_prompt_tokens=NUM_TOKENS - self.num_sampled,
                num_sampled_tokens=self.num_sampled,
                policy_version_min=41,
                policy_version_max=42,
            ),
            task_id=request.task_id,
            purpose=request.purpose,
            messages=self.messages,
            patch=self.patch,
        )


def make_pool(size: int = POOL_SIZE, seed: int = 0) -> list[Content]:
    """`size` different trajectories, the same at each call."""
    chance = random.Random(seed)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return [_content(_pieces(files, chance), chance) for _ in range(size)]


def _pieces(files: list[Path], chance: random.Random) -> list[str]:
    pieces: list[str] = []
    while len(pieces) < NUM_TOKENS:
        text = chance.choice(files).read_text(encoding="utf-8", errors="ignore")
        start = chance.randrange(max(1, len(text) - 20_000))
        pieces += PIECE.findall(text[start : start + 20_000])
    return pieces[:NUM_TOKENS]


def _content(pieces: list[str], chance: random.Random) -> Content:
    mask, messages = _turns(pieces, chance)
    sampled = mask == 1
    noise = np.random.default_rng(chance.getrandbits(32))
    near, far = noise.exponential(0.005, NUM_TOKENS), noise.exponential(0.8, NUM_TOKENS)
    logprobs = np.where(sampled, -np.where(noise.random(NUM_TOKENS) < 0.6, near, far), 0.0)
    versions = np.where(sampled, np.where(np.arange(NUM_TOKENS) < NUM_TOKENS // 2, 41, 42), -1)
    ids = np.array([zlib.crc32(piece.encode()) % VOCAB_SIZE for piece in pieces], "<i4")
    return Content(
        tokens=TrajectoryTokens(
            group_id="",
            sample_index=0,
            token_ids=Tensor.of(ids),
            loss_mask=Tensor.of(mask),
            behaviour_logprobs=Tensor.of(logprobs.astype("<f4")),
            policy_versions=Tensor.of(versions.astype("<i4")),
        ),
        messages=messages,
        patch="".join(pieces[-NUM_TOKENS // 10 :])[-PATCH_CHARS:],
        num_sampled=int(mask.sum()),
    )


def _turns(pieces: list[str], chance: random.Random) -> "tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], list[Message]]":
    """The mask, and the messages: what was read and what was sampled by turns, two thirds of it sampled."""
    mask = np.zeros(len(pieces), "u1")
    messages: list[Message] = []
    start, end, num_chars = 0, PROMPT_TOKENS, 0
    while start < len(pieces):
        is_sampled = len(messages) % 2 == 1
        mask[start:end] = is_sampled
        text = "".join(pieces[start:end])[: TEXT_CHARS - num_chars]
        num_chars += len(text)
        messages.append(Message(role="assistant" if is_sampled else "user", content=text))
        start, end = end, end + chance.randrange(100, 700 if is_sampled else 1500)
    return mask, messages
