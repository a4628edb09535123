"""Matching new weights with a live model: all or nothing."""

from pathlib import Path

import pytest
import torch

from gagar.errors import ConfigError, UnavailableError
from gagar.policies.weights import match_weights, read_weights

pytestmark = pytest.mark.slow


def live() -> dict[str, torch.Tensor]:
    tied = torch.zeros(3, 2)
    return {"embed": tied, "head": tied, "norm": torch.zeros(2)}


def test_either_name_of_tied_weights_is_enough_and_both_are_fine() -> None:
    new = {"embed": torch.ones(3, 2), "norm": torch.ones(2)}
    assert len(match_weights(live(), new, "v1")) == 2
    assert len(match_weights(live(), {"head": torch.ones(3, 2), "norm": torch.ones(2)}, "v1")) == 2
    assert len(match_weights(live(), {**new, "head": torch.ones(3, 2)}, "v1")) == 3


@pytest.mark.parametrize(
    ("new", "fault"),
    [
        ({"embed": torch.ones(3, 2)}, r"1 missing \['norm'\], 0 unknown"),
        ({"embed": torch.ones(3, 2), "norm": torch.ones(2), "x": torch.ones(1)}, r"0 missing \[\], 1 unknown \['x'\]"),
        ({"embed": torch.ones(3, 2), "norm": torch.ones(3)}, r"expected norm of shape \(2,\), got \(3,\)"),
        ({"embed": torch.full((3, 2), torch.nan), "norm": torch.ones(2)}, "expected finite numbers in embed"),
    ],
)
def test_weights_of_another_model_are_refused(new: dict[str, torch.Tensor], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        match_weights(live(), new, "v1")


def test_a_missing_file_is_an_outage_and_a_broken_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"expected model\.safetensors or model\.safetensors\.index\.json, got neither"):
        read_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ConfigError, match="expected safetensors"):
        read_weights(tmp_path)
