"""The engine over a Hugging Face causal language model in this process, on a CPU or a GPU, in float32.

A thread of its own runs the decode loop (`gagar.engine.decoding`); the event loop queues requests and receives completions.
New weights are copied into the live model between two decode steps. The cache of running sequences is kept: their later tokens
attend to keys and values that older weights computed, and each token carries the version that sampled it.
Not promised: prefix reuse between the turns of an attempt, sliding-window or recurrent models, more than one device.
"""

import asyncio
import logging
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gagar.engine.decoding import DecodeBatch, Generation
from gagar.engine.protocol import Completion, SamplingParams
from gagar.errors import ConfigError, UnavailableError
from gagar.policies.chat_template import ChatTemplate
from gagar.policies.model_directory import read_model
from gagar.policies.weights import match_weights, read_weights

logger = logging.getLogger(__name__)


def load_model(path: Path, device: str) -> Any:
    """The model at `path` in float32 for inference; raises ConfigError if it is unreadable, incomplete or unsupported."""
    model = read_model(path, dtype=torch.float32, attn_implementation="sdpa")
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    has_window = getattr(model.config, "use_sliding_window", True) and getattr(model.config, "sliding_window", None)
    if kinds != {"full_attention"} or has_window:
        raise ConfigError(
            f"policy.path {path}: expected full attention in every layer, got {sorted(kinds)}; use another engine"
        )
    return model.eval().requires_grad_(False).to(device)


def end_token_ids(model: Any, chat: ChatTemplate) -> frozenset[int]:
    """Every token that ends a completion: the tokenizer's and those of the generation configuration."""
    named = getattr(model.generation_config, "eos_token_id", None)
    ids = named if isinstance(named, list) else [named]
    return frozenset(token_id for token_id in [*ids, chat.end_token_id] if token_id is not None)


@dataclass(slots=True, kw_only=True, eq=False)
class Swap:
    """New weights that wait for the end of a decode step."""

    pairs: list[tuple[torch.Tensor, torch.Tensor]]
    """(live, new), matched beforehand: nothing can fail half-way."""
    version: int
    done: "asyncio.Future[None]"


class TransformersEngine:
    """Implements `gagar.engine.protocol.Engine`."""

    def __init__(
        self,
        chat: ChatTemplate,
        *,
        max_running: int = 64,
        max_cache_tokens: int = 1 << 18,
        num_threads: int = 1,
        device: str = "auto",
    ) -> None:
        """The model lies beside `chat`. `max_running` sequences decode at once, `max_cache_tokens` bounds rows x positions of
        the cache; `num_threads` of the CPU are the process's."""
        self._chat = chat
        self._max_running = max_running
        self._max_cache_tokens = max_cache_tokens
        self._num_threads = num_threads
        self._device = device
        self._version = -1
        self._wake = threading.Condition()
        self._arrived: list[Generation] = []
        self._swaps: list[Swap] = []
        self._is_closing = False
        self._fault = "it is not open"
        self._futures: dict[int, asyncio.Future[Completion]] = {}

    @property
    def policy_version(self) -> int:
        return self._version

    async def open(self) -> None:
        await asyncio.to_thread(self._load)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="decode", daemon=True)
        self._fault = ""
        self._thread.start()

    def _load(self) -> None:
        device = self._device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._chat.open()
        self._model = load_model(self._chat.path, device)
        self._live = self._model.state_dict()
        self._context = int(self._model.config.max_position_embeddings)
        self._vocab = int(self._model.get_input_embeddings().num_embeddings)
        stop_ids = end_token_ids(self._model, self._chat)
        self._batch = DecodeBatch(self._model, stop_ids, self._max_running, self._max_cache_tokens)

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Completion:
        generation = self._generation(prompt_ids, params)
        if generation.max_new_tokens <= 0:
            return Completion(token_ids=[], logprobs=[], policy_versions=[], finish="length", sampling_s=0.0)
        future: asyncio.Future[Completion] = self._loop.create_future()
        self._futures[id(generation)] = future
        try:
            self._enqueue(generation)
            return await future
        finally:
            generation.is_cancelled = True
            self._futures.pop(id(generation), None)

    def _generation(self, prompt_ids: list[int], params: SamplingParams) -> Generation:
        """What the batch needs; raises ValueError for what no engine can sample from."""
        if self._fault:
            raise UnavailableError(f"engine: expected a running decode loop, got none: {self._fault}")
        if not prompt_ids or min(prompt_ids) < 0 or max(prompt_ids) >= self._vocab:
            raise ValueError(f"prompt_ids: expected at least one id, all in 0 .. {self._vocab - 1}, got {len(prompt_ids)} ids")
        if params.temperature <= 0:
            raise ValueError(f"temperature: expected more than 0, got {params.temperature}")
        return Generation(
            prompt_ids=prompt_ids,
            max_new_tokens=min(params.max_new_tokens, self._context - len(prompt_ids)),
            temperature=params.temperature,
            random=random.Random(params.seed),
            timeout_s=params.timeout_s,
            deadline=time.monotonic() + params.deadline_s,
        )

    def _enqueue(self, item: Generation | Swap) -> None:
        with self._wake:
            if isinstance(item, Generation):
                self._arrived.append(item)
            else:
                self._swaps.append(item)
            self._wake.notify()

    async def load_weights(self, location: Path, version: int) -> None:
        pairs = await asyncio.to_thread(lambda: match_weights(self._live, read_weights(location), str(location)))
        if self._fault:
            raise UnavailableError(f"engine: expected a running decode loop, got none: {self._fault}")
        swap = Swap(pairs=pairs, version=version, done=self._loop.create_future())
        self._enqueue(swap)
        await swap.done

    async def close(self) -> None:
        if self._fault:
            return
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        """The thread: decodes until `close`; whatever ends it, nobody waits for ever."""
        torch.set_num_threads(self._num_threads)
        fault = "it stopped on an unexpected error"
        try:
            while self._serve():
                pass
            fault = "it is closed"
        finally:
            self._fault = fault
            with self._wake:
                given_up, swaps = [*self._arrived, *self._batch.clear()], self._swaps
            self._loop.call_soon_threadsafe(self._fail, given_up, swaps, fault)

    def _serve(self) -> bool:
        """Takes what has arrived and makes one decode step; False once closing."""
        with self._wake:
            self._wake.wait_for(lambda: self._arrived or self._swaps or self._is_closing or not self._batch.is_idle)
            if self._is_closing:
                return False
            arrived, self._arrived = self._arrived, []
            swaps, self._swaps = self._swaps, []
        self._batch.submit(arrived)
        for swap in swaps:
            self._apply(swap)
        try:
            ended = self._batch.step(self._version)
        except RuntimeError as error:  # torch's errors, out of memory among them
            logger.warning("decode step failed error=%s", error)
            self._loop.call_soon_threadsafe(self._fail, self._batch.clear(), [], str(error))
        else:
            if ended:
                self._loop.call_soon_threadsafe(self._deliver, ended)
        return True

    def _apply(self, swap: Swap) -> None:
        with torch.inference_mode():
            for live, new in swap.pairs:
                live.copy_(new)
        self._version = swap.version
        self._loop.call_soon_threadsafe(_settle, swap.done)

    def _deliver(self, ended: list[Generation]) -> None:
        for generation in ended:
            future = self._futures.get(id(generation))
            if future is not None and not future.done():
                future.set_result(generation.completion())

    def _fail(self, given_up: list[Generation], swaps: list[Swap], fault: str) -> None:
        error = UnavailableError(f"engine: expected an answer, got a fault: {fault}")
        waiting = [self._futures.get(id(generation)) for generation in given_up]
        for future in (*waiting, *(swap.done for swap in swaps)):
            if future is not None and not future.done():
                future.set_exception(error)


def _settle(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
