"""A lock file keeps processes apart."""

import os
from pathlib import Path

import pytest

from gagar.errors import UnavailableError
from gagar.processes.locks import file_lock


def test_a_held_lock_is_refused_with_its_holder_and_advice(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with (
        file_lock(path, timeout_s=0, advice="wait"),
        pytest.raises(UnavailableError, match=rf"lock: expected to be free within 0 s, got held by pid {os.getpid()}; wait$"),
        file_lock(path, timeout_s=0, advice="wait"),
    ):
        raise AssertionError("two holders")


def test_a_lock_is_free_again_after_an_error_in_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), file_lock(tmp_path / "lock", timeout_s=0, advice=""):
        raise ZeroDivisionError
    with file_lock(tmp_path / "lock", timeout_s=0, advice=""):
        pass
