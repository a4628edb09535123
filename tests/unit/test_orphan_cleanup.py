"""The members of a directory end with its holder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gagar.errors import UnavailableError
from gagar.processes.orphan_cleanup import LOCK_FILE, OrphanCleanup, environment, members

pytestmark = pytest.mark.slow


def start(directory: Path, name: str = "", script: str = "input()") -> subprocess.Popen[bytes]:
    """A member of the directory, ready when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", f"print('up', flush=True); {script}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment(directory, name)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def finish(process: subprocess.Popen[bytes]) -> int:
    with process:
        return process.wait(timeout=20)


def test_members_are_those_of_the_directory_and_of_the_name(tmp_path: Path) -> None:
    a, b = start(tmp_path / "x", "a"), start(tmp_path / "x", "b")
    try:
        assert sorted(members(tmp_path / "x")) == sorted([a.pid, b.pid])
        assert members(tmp_path / "x", "b") == [b.pid]
        assert members(tmp_path / "y") == []
    finally:
        for process in (a, b):
            process.kill()
            finish(process)


def test_leaving_ends_the_members_that_are_left(tmp_path: Path) -> None:
    with OrphanCleanup(tmp_path, is_exclusive=True):
        process = start(tmp_path)
        assert process.poll() is None
    assert finish(process) == -15


def test_entering_ends_what_an_earlier_holder_left(tmp_path: Path) -> None:
    leftover = start(tmp_path)
    with OrphanCleanup(tmp_path, is_exclusive=True):
        assert finish(leftover) == -15


def test_a_second_exclusive_holder_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with OrphanCleanup(tmp_path, is_exclusive=True) as holder:
        process = start(tmp_path)
        what = rf"expected to be free, got in use by another gagar \(pid {os.getpid()}\); stop that one"
        with pytest.raises(UnavailableError, match=what), OrphanCleanup(tmp_path, is_exclusive=True):
            raise AssertionError("two holders")
        assert process.poll() is None
        assert holder.is_alone()
    finish(process)


def test_the_last_of_two_holders_ends_the_rest(tmp_path: Path) -> None:
    with OrphanCleanup(tmp_path, is_exclusive=False) as second:
        with OrphanCleanup(tmp_path, is_exclusive=False) as first:
            process = start(tmp_path)
            assert not first.is_alone()
        assert process.poll() is None
        assert second.is_alone()
    assert finish(process) == -15


def test_the_lock_file_tells_who_holds_it(tmp_path: Path) -> None:
    with OrphanCleanup(tmp_path, is_exclusive=True):
        assert (tmp_path / LOCK_FILE).read_text() == str(os.getpid())


def test_members_end_with_their_holder_even_if_the_directory_was_moved_away(tmp_path: Path) -> None:
    directory = tmp_path / "x"
    with OrphanCleanup(directory, is_exclusive=True):
        process = start(directory)
        directory.rename(tmp_path / "y")
    assert finish(process) == -15
