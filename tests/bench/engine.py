"""Tokens per second of gagar's transformers engine against the library's own `generate`, on the shipped nano policy.

One batch: as many concurrent requests as the library gets rows, to the end of the last. A stream: each caller asks again as
soon as it is answered, four times; the library makes four batches. One thread each, same prompts, temperature 1, interleaved.
The engine also returns log-probabilities and versions of all tokens; the library returns ids only. The ratio is told by the
clock and, since a busy machine disturbs that, by core time as well.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gagar
from gagar.engine.protocol import SamplingParams
from gagar.engine.transformers import TransformersEngine
from gagar.policies.chat_template import ChatTemplate
from gagar.tasks.jsonl import JsonlTasks
from tests.bench.figures import Part, Spread, paired_ratio, table

NANO = Path(gagar.__file__).parent / "data" / "nano"
CONCURRENT = (32, 64)
TURNS = 4
MAX_NEW_TOKENS = 96
NUM_ROUNDS = 6


class Rate(NamedTuple):
    """Sampled tokens by time."""

    per_s: float
    per_core_s: float


class Clock:
    """Time since it was made."""

    def __init__(self) -> None:
        self._wall, self._core = time.perf_counter(), time.process_time()

    def rate(self, num_tokens: int) -> Rate:
        return Rate(num_tokens / (time.perf_counter() - self._wall), num_tokens / (time.process_time() - self._core))


class Library:
    """`generate` of the library, one batch at a time."""

    def __init__(self, policy: Path) -> None:
        from transformers import AutoTokenizer

        from gagar.engine.transformers import load_model

        self._model = load_model(policy, "cpu")
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(policy))

    def num_sampled(self, prompts: Sequence[list[int]], seed: int) -> int:
        """Tokens sampled after the prompts, end tokens included."""
        import torch

        torch.manual_seed(seed)
        batch = self._tokenizer.pad({"input_ids": list(prompts)}, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            rows = self._model.generate(
                **batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=MAX_NEW_TOKENS
            )
        end = self._tokenizer.eos_token_id
        sampled = rows[:, batch["input_ids"].shape[1] :].tolist()
        return sum(ids.index(end) + 1 if end in ids else len(ids) for ids in sampled)

    def rate(self, prompts: Sequence[list[int]], turns: int, seed: int) -> Rate:
        """Of that many batches."""
        clock = Clock()
        return clock.rate(sum(self.num_sampled(prompts, seed + turn) for turn in range(turns)))


async def engine_rate(engine: TransformersEngine, prompts: Sequence[list[int]], turns: int, seed: int) -> Rate:
    """Of callers that ask `turns` times each."""

    async def caller(number: int, prompt: list[int]) -> int:
        total = 0
        for turn in range(turns):
            params = SamplingParams(max_new_tokens=MAX_NEW_TOKENS, seed=1000 * (seed + turn) + number)
            total += len((await engine.generate(prompt, params)).token_ids)
        return total

    clock = Clock()
    return clock.rate(sum(await asyncio.gather(*(caller(number, prompt) for number, prompt in enumerate(prompts)))))


async def measure(num_rounds: int) -> dict[tuple[int, int], tuple[list[Rate], list[Rate]]]:
    """Rates of engine and library, by concurrent requests and turns."""
    import torch

    torch.set_num_threads(1)
    policy = NANO / "policy"
    chat = ChatTemplate(policy)
    library, engine = Library(policy), TransformersEngine(chat, max_running=max(CONCURRENT), device="cpu")
    await engine.open()
    statements = [task.statement for task in JsonlTasks(NANO / "train.jsonl").all()[: max(CONCURRENT)]]
    prompts = [chat.render([{"role": "user", "content": statement}]) for statement in statements]
    rates: dict[tuple[int, int], tuple[list[Rate], list[Rate]]] = {
        (concurrent, turns): ([], []) for concurrent in CONCURRENT for turns in (1, TURNS)
    }
    try:
        await engine_rate(engine, prompts, 1, 0)
        library.rate(prompts, 1, 0)
        for seed in range(1, num_rounds + 1):
            for (concurrent, turns), (ours, theirs) in rates.items():
                ours.append(await engine_rate(engine, prompts[:concurrent], turns, 10 * seed))
                theirs.append(library.rate(prompts[:concurrent], turns, 10 * seed))
    finally:
        await engine.close()
    return rates


def run(quick: bool) -> Part:
    """The part `engine`."""
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for (concurrent, turns), (ours, theirs) in asyncio.run(measure(1 if quick else NUM_ROUNDS)).items():
        engine, library = (Spread.of([rate.per_s for rate in rates]) for rates in (ours, theirs))
        ratio = paired_ratio([rate.per_s for rate in ours], [rate.per_s for rate in theirs])
        core_ratio = paired_ratio([rate.per_core_s for rate in ours], [rate.per_core_s for rate in theirs])
        what = f"{concurrent} concurrent, " + ("one batch" if turns == 1 else f"{turns} each")
        rows.append([what, str(engine), str(library), str(ratio), str(core_ratio)])
        name = f"{concurrent}" if turns == 1 else f"{concurrent}_stream"
        figures |= {
            **engine.as_json(f"engine_tokens_per_s_{name}"),
            **library.as_json(f"library_tokens_per_s_{name}"),
            **ratio.as_json(f"ratio_{name}"),
            **core_ratio.as_json(f"core_ratio_{name}"),
        }
    header = ["", "engine, tokens/s", "library, tokens/s", "engine over library", "by core time"]
    return Part(table=table("engine: nano policy, median (range)", header, rows), figures=figures)
