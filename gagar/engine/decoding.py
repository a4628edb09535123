"""The decode loop: continuous batching of many generations over one Hugging Face causal language model.

In: generations (prompt ids and how to sample). Out: the same with sampled ids, behaviour log-probabilities and the policy
version of each token. One thread owns a batch; nothing here knows of event loops.

A new generation joins between two decode steps: all but the last token of its prompt is prefilled (equal prompts once: the
members of a group share theirs), and the last one is decoded with the others, so there is one place that samples.
The random numbers of a generation are its own: neither its neighbours nor its place in the batch change what it samples,
up to rounding. Memory is bounded by `max_rows` and `max_cache_tokens`; a generation waits until its worst case fits.
"""

import math
import random
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from gagar.engine.protocol import Completion, Finish
from gagar.engine.slots import SlotCache

MAX_PREFILL_TOKENS = 16384
"""Padded prompt tokens of one prefill; a longer prompt is prefilled alone."""
JOIN_SHARE = 8
"""New generations join when they are a 1/8 of the running ones ..."""
JOIN_STEPS = 8
"""... or after this many steps at the latest: a prefill costs nearly the same for one as for a few."""


@dataclass(slots=True, kw_only=True, eq=False)
class Generation:
    """One completion in the making."""

    prompt_ids: list[int]
    max_new_tokens: int
    temperature: float
    random: random.Random
    timeout_s: float = math.inf
    """Seconds from `joined_at` on."""
    deadline: float = math.inf
    """By the monotonic clock."""
    is_cancelled: bool = False
    """Set by the caller, from any thread; the batch then drops it."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)
    finish: Finish | None = None
    joined_at: float = math.inf
    """When it got a row, by the monotonic clock; infinite while it waits."""
    sampling_s: float = 0.0
    """From there to its end."""

    @property
    def position(self) -> int:
        """Of the token that the next step feeds: the last of prompt and sampled ones."""
        return len(self.prompt_ids) + len(self.token_ids) - 1

    @property
    def pending(self) -> int:
        """The token that the next step feeds."""
        return self.token_ids[-1] if self.token_ids else self.prompt_ids[-1]

    @property
    def max_length(self) -> int:
        return len(self.prompt_ids) + self.max_new_tokens

    def is_over(self, now: float) -> bool:
        """Whether its time is up, or nobody wants it any more."""
        return self.is_cancelled or self.deadline <= now or self.joined_at + self.timeout_s <= now

    def completion(self) -> Completion:
        return Completion(
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            policy_versions=self.policy_versions,
            finish=self.finish or "length",
            sampling_s=self.sampling_s,
        )


def sample(logits: torch.Tensor, temperatures: torch.Tensor, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B] by inverse cumulative distribution at `points` [B] in [0, 1), and their log-probabilities [B].

    Both after temperature. Log-probabilities are the float32 log_softmax that the learner computes too; the sum runs in
    float64, so that a token of probability 1e-12 keeps its share.
    """
    logprobs = torch.log_softmax(logits.float() / temperatures[:, None], dim=-1)
    cumulative = torch.cumsum(logprobs.exp(), dim=-1, dtype=torch.float64)
    targets = points[:, None] * cumulative[:, -1:]
    token_ids = torch.searchsorted(cumulative, targets, right=True).clamp_(max=logits.shape[-1] - 1)
    return token_ids[:, 0], logprobs.gather(1, token_ids)[:, 0]


class DecodeBatch:
    """The running generations and those that wait for a row."""

    def __init__(self, model: Any, stop_ids: frozenset[int], max_rows: int, max_cache_tokens: int) -> None:
        self._model = model
        self._stop_ids = stop_ids
        self._max_rows = max_rows
        self._max_cache_tokens = max_cache_tokens
        self._cache = SlotCache(model.config.num_hidden_layers)
        self._device = model.device
        self._rows: list[Generation] = []
        self._waiting: deque[Generation] = deque()
        self._steps_waited = 0

    @property
    def is_idle(self) -> bool:
        return not self._rows and not self._waiting

    def submit(self, generations: Iterable[Generation]) -> None:
        """Queues generations, in order."""
        self._waiting.extend(generations)

    def clear(self) -> list[Generation]:
        """Gives up everything and frees the cache; returns what was running or waiting."""
        given_up = [*self._rows, *self._waiting]
        self._rows, self._waiting = [], deque()
        self._cache.release()
        return given_up

    @torch.inference_mode()
    def step(self, version: int) -> list[Generation]:
        """Samples one token for every running generation, with weights `version`; returns what ended, uncancelled."""
        ended = self._sweep()
        self._join()
        if self._rows:
            self._decode(version)
            ended += self._leave()
        return ended

    def _sweep(self) -> list[Generation]:
        """Takes out what was cancelled or whose time is up."""
        now = time.monotonic()
        over = [g for g in (*self._rows, *self._waiting) if g.is_over(now)]
        if not over:
            return []
        for generation in over:
            generation.finish = "time"
        self._waiting = deque(g for g in self._waiting if g.finish is None)
        self._leave()
        return [g for g in over if not g.is_cancelled]

    def _leave(self) -> list[Generation]:
        """Frees the rows of ended generations; the last row moves into each gap."""
        ended, now = [], time.monotonic()
        for row in range(len(self._rows) - 1, -1, -1):
            if self._rows[row].finish is None:
                continue
            self._rows[row].sampling_s = now - self._rows[row].joined_at
            ended.append(self._rows[row])
            last = self._rows.pop()
            if row < len(self._rows):
                self._cache.move(len(self._rows), row, last.position)
                self._rows[row] = last
        return ended

    def _join(self) -> None:
        """Lets waiting generations in, a few at a time."""
        if not self._waiting:
            return
        self._steps_waited += 1
        if len(self._waiting) * JOIN_SHARE < len(self._rows) and self._steps_waited < JOIN_STEPS:
            return
        self._steps_waited = 0
        while joining := self._take_waiting():
            self._prefill(joining)

    def _take_waiting(self) -> list[Generation]:
        """The next generations that fit into the rows, the cache and one prefill."""
        taken: list[Generation] = []
        longest = max((row.max_length for row in self._rows), default=0)
        longest_prompt = 0
        while self._waiting and len(self._rows) + len(taken) < self._max_rows:
            candidate = self._waiting[0]
            longest = max(longest, candidate.max_length)
            longest_prompt = max(longest_prompt, len(candidate.prompt_ids))
            num_rows = len(self._rows) + len(taken) + 1
            is_over = num_rows * longest > self._max_cache_tokens or (len(taken) + 1) * longest_prompt > MAX_PREFILL_TOKENS
            if is_over and (taken or self._rows):
                break
            taken.append(self._waiting.popleft())
        return taken

    def _prefill(self, joining: list[Generation]) -> None:
        """Computes keys and values of all but the last prompt token of `joining` and gives them rows."""
        now = time.monotonic()
        prefixes: dict[tuple[int, ...], int] = {}
        sources = [prefixes.setdefault(tuple(g.prompt_ids[:-1]), len(prefixes)) for g in joining]
        length = max(map(len, prefixes))
        first_row = len(self._rows)
        self._cache.reserve(first_row + len(joining), length + 1)
        if length:
            padded = [prefix + (0,) * (length - len(prefix)) for prefix in prefixes]
            positions = torch.arange(length, device=self._device).expand(len(padded), length)
            self._cache.aim_at_new_rows(first_row, torch.tensor(sources, device=self._device))
            token_ids = torch.tensor(padded, device=self._device)
            self._model.base_model(input_ids=token_ids, position_ids=positions, past_key_values=self._cache, use_cache=True)
        for generation in joining:
            generation.joined_at = now
        self._rows += joining

    def _decode(self, version: int) -> None:
        """One forward pass over the pending token of every row, one sampled token each."""
        rows, device = self._rows, self._device
        length = max(row.position for row in rows) + 1
        self._cache.reserve(len(rows), length)
        positions = torch.tensor([row.position for row in rows], device=device)
        pending = torch.tensor([row.pending for row in rows], device=device)
        self._cache.aim_at_ends(positions, length)
        is_seen = torch.arange(length, device=device) <= positions[:, None]
        logits = self._model(
            input_ids=pending[:, None],
            position_ids=positions[:, None],
            attention_mask=is_seen[:, None, None, :],
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]
        temperatures = torch.tensor([row.temperature for row in rows], device=device)
        points = torch.tensor([row.random.random() for row in rows], dtype=torch.float64, device=device)
        token_ids, logprobs = sample(logits, temperatures, points)
        for row, token_id, logprob in zip(rows, token_ids.tolist(), logprobs.tolist(), strict=True):
            row.token_ids.append(token_id)
            row.logprobs.append(logprob)
            row.policy_versions.append(version)
            if token_id in self._stop_ids:
                row.finish = "stop"
            elif len(row.token_ids) >= row.max_new_tokens:
                row.finish = "length"
