"""Weights of a policy version: read from safetensors files and matched with a live model before anything is overwritten."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gagar.errors import ConfigError, UnavailableError
from gagar.policies.model_directory import weight_files

if TYPE_CHECKING:
    import torch


def read_weights(location: Path) -> "dict[str, torch.Tensor]":
    """All tensors of the model in `location`; raises UnavailableError if unreadable, ConfigError if malformed."""
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(location):
        tensors.update(_read_file(path))
    return tensors


def _read_file(path: Path) -> "dict[str, torch.Tensor]":
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)  # type: ignore[no-any-return]
    except OSError as error:
        raise UnavailableError(f"policy weights {path}: expected a readable file, got {error}") from error
    except SafetensorError as error:
        raise ConfigError(f"policy weights {path}: expected safetensors, got {error}; publish the version anew") from error


def match_weights(
    live: "Mapping[str, torch.Tensor]", new: "Mapping[str, torch.Tensor]", what: str
) -> "list[tuple[torch.Tensor, torch.Tensor]]":
    """Pairs (live, new) that cover every live tensor once at least; raises ConfigError if `new` belongs to another model.

    Tied tensors share their storage, and a file holds one of their names or all.
    """
    unknown = sorted(new.keys() - live.keys())
    covered = {live[name].data_ptr() for name in new if name in live}
    missing = sorted(name for name, tensor in live.items() if tensor.data_ptr() not in covered)
    if unknown or missing:
        got = f"{len(missing)} missing {missing[:2]}, {len(unknown)} unknown {unknown[:2]}"
        raise ConfigError(f"policy weights {what}: expected the tensors of the loaded model, got {got}")
    for name, tensor in new.items():
        _check_tensor(name, live[name], tensor, what)
    return [(live[name], tensor) for name, tensor in new.items()]


def _check_tensor(name: str, live: "torch.Tensor", new: "torch.Tensor", what: str) -> None:
    if new.shape != live.shape:
        raise ConfigError(f"policy weights {what}: expected {name} of shape {tuple(live.shape)}, got {tuple(new.shape)}")
    if new.is_floating_point() and not new.isfinite().all():
        raise ConfigError(f"policy weights {what}: expected finite numbers in {name}, got others")
