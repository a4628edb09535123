"""The policy as a Hugging Face model: load it, name it so that checkpoints of another are told apart, publish its weights.

A published policy is a directory with config, tokenizer and safetensors. It appears under its name in one rename, after
everything in it has been flushed: whoever sees it sees all of it.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gagar.errors import ConfigError
from gagar.policies.model_directory import MAX_SHARD_SIZE, read_model, weights_checksum, write_model

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

TEXT_SUFFIXES = (".json", ".txt", ".jinja", ".model")
"""Of config, tokenizer and chat template; anything else in a model's directory is weights or notes."""
ModelDtype = Literal["float32", "bfloat16"]
VOLATILE = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")
"""Keys of a model's config that do not change what it computes."""


def load_model(path: Path, dtype: ModelDtype) -> "Module":
    """The causal language model at `path`, in training mode, without dropout: the learner's probabilities must be those that
    the engine samples from. Raises ConfigError if it cannot be read."""
    if not (path / "config.json").is_file():
        raise ConfigError(f"policy.path {path}: expected a Hugging Face model directory, got no config.json there")
    import torch
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"policy.path {path}: expected the config of a language model, got {error}") from error
    for key, value in config.to_dict().items():
        if isinstance(value, float) and ("dropout" in key or key.endswith("pdrop")):
            setattr(config, key, 0.0)
    config.use_cache = False
    model: Module = read_model(path, config=config, dtype=getattr(torch, dtype))
    return model.train()


def describe(model: "Module") -> str:
    """Class, size and a digest over names, shapes and config. Example: `LlamaForCausalLM 1967808 parameters 8bd2fb9f`."""
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    config: dict[str, Any] = model.config.to_dict()  # type: ignore[operator, union-attr]
    facts = {key: value for key, value in config.items() if key not in VOLATILE}
    digest = hashlib.sha256(json.dumps([shapes, facts], sort_keys=True, default=str).encode()).hexdigest()
    size = sum(parameter.numel() for parameter in model.parameters())
    return f"{type(model).__name__} {size} parameters {digest[:16]}"


def save_policy(
    model: "Module", state: dict[str, "Tensor"], source: Path, destination: Path, max_shard_size: str = MAX_SHARD_SIZE
) -> str:
    """Publishes `state` as the directory `destination`, with the tokenizer files of `source`; answers the weights' checksum.

    One that is there already (of a run that died before it said so) is replaced.
    """
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for item in source.iterdir():
        if item.is_file() and item.suffix in TEXT_SUFFIXES and not item.name.endswith(".index.json"):
            shutil.copyfile(item, temporary / item.name)
    write_model(model, temporary, state, max_shard_size)
    checksum = weights_checksum(temporary)
    flush_tree(temporary)
    shutil.rmtree(destination, ignore_errors=True)
    os.rename(temporary, destination)
    flush_path(destination.parent)
    return checksum


def flush_tree(directory: Path) -> None:
    """Makes all files below a directory durable, and their names."""
    for item in directory.rglob("*"):
        flush_path(item)
    flush_path(directory)


def flush_path(path: Path) -> None:
    """fsync of a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
