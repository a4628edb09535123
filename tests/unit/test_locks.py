"""A lock file keeps processes apart."""

import os
import subprocess
import sys
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


def test_a_lock_goes_with_its_holder_even_if_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom gagar.processes.locks import file_lock\n"
        "with file_lock(Path(sys.argv[1]), timeout_s=0, advice=''):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-P", "-c", script, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(UnavailableError, match=rf"got held by pid {holder.pid}; wait"),
            file_lock(path, timeout_s=0, advice="wait"),
        ):
            raise AssertionError("two holders")
        holder.kill()
    with file_lock(path, timeout_s=5, advice=""):
        assert path.read_text() == str(os.getpid())
