"""A model directory in Hugging Face format: read whole, or refused with what is wrong.

In: a path. Out: the causal language model; no weight of it is made up. The weights lie in one `model.safetensors`, or in
shards that `model.safetensors.index.json` lists, as large models have it. `check_directory` looks at the frames of the files
only, without torch, so that one that is cut short, lost or none at all is told before anything starts.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gagar.errors import ConfigError, GagarError, UnavailableError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_SHARD_SIZE = "5GB"
"""Of a file that `write_model` makes."""
MAX_HEADER_BYTES = 100_000_000
"""The format's own bound."""


class ShardIndex(msgspec.Struct, frozen=True, kw_only=True):
    """`model.safetensors.index.json`."""

    weight_map: dict[str, str]
    """Tensor name -> name of the file that holds it."""


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of the model, by name. One `model.safetensors` goes before an index, as in transformers. Raises
    ConfigError for an index that cannot be read, UnavailableError without either file."""
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    return [directory / name for name in sorted(set(_read_index(directory).weight_map.values()))]


def _read_index(directory: Path) -> ShardIndex:
    path = directory / INDEX
    try:
        index = msgspec.json.decode(path.read_bytes(), type=ShardIndex)
    except FileNotFoundError:
        raise UnavailableError(f"policy weights {directory}: expected {WEIGHTS} or {INDEX}, got neither") from None
    except OSError as error:
        raise UnavailableError(f"policy weights {path}: expected a readable file, got {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"policy weights {path}: expected an index of shards, got {error}") from error
    outside = [name for name in index.weight_map.values() if Path(name).name != name]
    if outside or not index.weight_map:
        got = repr(min(outside)) if outside else "none"
        raise ConfigError(f"policy weights {path}: expected names of files beside it, got {got}")
    return index


def weights_checksum(directory: Path) -> str:
    """sha256 of `model.safetensors`, hexadecimal; for shards, that of the lines that `sha256sum` prints of the index and the
    shards, by name. Raises UnavailableError if a file cannot be read."""
    files = weight_files(directory)
    if files == [directory / WEIGHTS]:
        return _file_digest(files[0])
    lines = [f"{_file_digest(path)}  {path.name}\n" for path in sorted([directory / INDEX, *files])]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UnavailableError(f"policy weights {path}: expected a readable file, got {error.strerror}") from error


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


def write_model(
    model: Any, directory: Path, state: "Mapping[str, Tensor] | None" = None, max_shard_size: str = MAX_SHARD_SIZE
) -> None:
    """Writes config and weights (`state`, or the model's own) into a directory, as shards if they are larger than one file
    may be. Everybody may read them: workers may run as other users, and safetensors makes them private."""
    model.save_pretrained(directory, state_dict=state, max_shard_size=max_shard_size)
    for path in weight_files(directory):
        path.chmod(0o644)


def check_directory(directory: Path) -> None:
    """Raises ConfigError unless config, tokenizer and all weights are there, and each weights file is whole."""
    _check_presence(directory)
    try:
        msgspec.json.decode((directory / CONFIG).read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"policy.path {directory / CONFIG}: expected a JSON object, got {error}") from error
    try:
        files = weight_files(directory)
        shards = {} if files[0].name == WEIGHTS else _read_index(directory).weight_map
    except GagarError as error:
        raise ConfigError(f"policy.path: {error}") from error
    headers = {path.name: _check_frame(path) for path in files}
    for tensor, name in shards.items():
        if tensor not in headers[name]:
            raise ConfigError(
                f"policy.path {directory / name}: expected the tensor {tensor} that {INDEX} says is in it, got none; "
                "copy or make the model anew"
            )


def _check_presence(directory: Path) -> None:
    if not (directory / CONFIG).is_file():
        raise ConfigError(
            f"policy.path: expected a Hugging Face model directory, got {directory} without {CONFIG}; "
            "name one, or make one with `gagar sft policy`"
        )
    if not (directory / TOKENIZER).is_file():
        raise ConfigError(
            f"policy.path: expected a model with {TOKENIZER}, got {directory} without {TOKENIZER}; save its fast tokenizer"
        )
    if not (directory / WEIGHTS).is_file() and not (directory / INDEX).is_file():
        raise ConfigError(
            f"policy.path: expected weights in {WEIGHTS}, or in shards listed by {INDEX}, got {directory} without {WEIGHTS}; "
            "save the model as safetensors"
        )


def _check_frame(path: Path) -> set[str]:
    """Names of the tensors of a safetensors file; raises ConfigError unless it is as long as its header says."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length) if length <= MAX_HEADER_BYTES else b"")
        names = header.keys() - {"__metadata__"}
        expected = 8 + length + max(header[name]["data_offsets"][1] for name in names)
    except OSError as error:
        raise ConfigError(f"policy.path {path}: expected a readable file, got {error.strerror}") from error
    except (ValueError, AttributeError, LookupError, TypeError) as error:
        raise ConfigError(f"policy.path {path}: expected safetensors, got another file; copy or make the model anew") from error
    size = path.stat().st_size
    if size != expected:
        raise ConfigError(f"policy.path {path}: expected {expected} bytes, got {size}; copy or make the model anew")
    return names
