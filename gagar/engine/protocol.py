"""The engine port: exact token ids in, sampled token ids with their behaviour log-probabilities and policy versions out."""

import math
from pathlib import Path
from typing import Literal, Protocol

import msgspec

Finish = Literal["stop", "length", "time"]
"""stop: an end token was sampled. length: the bound of new tokens or the model's context was met. time: `timeout_s` or
`deadline_s` was up."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample. top_p and top_k are left at "everything", so that the learner's distribution is the same."""

    temperature: float = 1.0
    """More than 0."""
    max_new_tokens: int = 1024
    """At most; the model's context may hold less."""
    seed: int = 0
    """The same seed, prompt and weights sample the same tokens, up to rounding."""
    timeout_s: float = math.inf
    """Seconds that the sampling may take from when the completion has left the engine's queue; what was sampled by then is
    answered, with the finish `time`."""
    deadline_s: float = math.inf
    """The same for seconds from the call on, the queue included."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What was sampled after a prompt; all lists are [num sampled], the end token included if it was sampled."""

    token_ids: list[int]
    """In the order in which they were sampled."""
    logprobs: list[float]
    """Of the distribution really sampled from (after temperature)."""
    policy_versions: list[int]
    """Version whose weights sampled each token."""
    finish: Finish
    """Why it ended."""
    sampling_s: float
    """Seconds from when it left the engine's queue to its end; 0 if it never did. The rest of the call was waiting."""


class Engine(Protocol):
    """Samples for many callers at once; batches them by itself."""

    async def open(self) -> None:
        """Loads the model at the initial path; raises ConfigError for a model that cannot be read."""

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Completion:
        """One completion; cancelling the call frees its place. Raises UnavailableError if the engine is down."""

    async def load_weights(self, location: Path, version: int) -> None:
        """Loads the safetensors of a directory while callers wait between two tokens; raises ConfigError if the weights
        belong to another model, and then the old ones stay."""

    @property
    def policy_version(self) -> int:
        """Version of the loaded weights; -1 before the first."""

    async def close(self) -> None: ...
