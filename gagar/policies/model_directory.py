"""A model directory in Hugging Face format: read whole, or refused with what is wrong.

In: a path. Out: the causal language model; no weight of it is made up. `check_weights` looks at the file's frame only, without
torch, so that a file that is cut short or none at all is told before anything starts.
"""

import json
from pathlib import Path
from typing import Any

from gagar.errors import ConfigError

WEIGHTS = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
"""The format's own bound."""


def read_model(path: Path, **options: Any) -> Any:
    """The model at `path`, with `options` of `from_pretrained`; raises ConfigError unless it has all its weights."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            str(path), local_files_only=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"policy.path {path}: expected a causal language model, got {error}") from error
    lacking = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if lacking:
        raise ConfigError(f"policy.path {path}: expected weights for the whole model, got none for {lacking[:2]}")
    return model


def check_weights(path: Path) -> None:
    """Raises ConfigError unless the file at `path` is as long as the header of its safetensors says."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length) if length <= MAX_HEADER_BYTES else b"")
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends)
    except OSError as error:
        raise ConfigError(f"policy.path {path}: expected a readable file, got {error.strerror}") from error
    except (ValueError, AttributeError, LookupError, TypeError) as error:
        raise ConfigError(f"policy.path {path}: expected safetensors, got another file; copy or make the model anew") from error
    size = path.stat().st_size
    if size != expected:
        raise ConfigError(f"policy.path {path}: expected {expected} bytes, got {size}; copy or make the model anew")
