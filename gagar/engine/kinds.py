"""Which engine: by the kind that the run file names."""

from pathlib import Path
from typing import Literal

from gagar.engine.protocol import Engine

EngineKind = Literal["transformers"]


def make_engine(
    kind: EngineKind, path: Path, *, max_running: int, max_cache_tokens: int, num_threads: int, device: str
) -> Engine:
    """An engine, not yet open, for the model at `path`."""
    from gagar.engine.transformers import TransformersEngine

    assert kind == "transformers", kind
    return TransformersEngine(
        path, max_running=max_running, max_cache_tokens=max_cache_tokens, num_threads=num_threads, device=device
    )
