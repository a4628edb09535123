"""Whether a directory is still there and still takes data; on a real full disk where the tests may mount one."""

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gagar.broker.watch import ClusterWatch
from gagar.errors import MachineError, UnavailableError
from gagar.processes.storage import Storage, lack_of
from gagar.processes.supervised import ProcessSpec
from gagar.processes.supervisor import Supervisor


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_is_told_from_one_with_room_and_nothing_stays_on_it(small_disk: Path) -> None:
    storage = Storage(small_disk)
    storage.check_room()
    assert list(small_disk.iterdir()) == []
    (small_disk / "data").write_bytes(bytes(2 << 20))
    with pytest.raises(MachineError, match=r"expected to take data, got no space left on device; make room and start the run"):
        storage.check_room()
    assert [path.name for path in small_disk.iterdir()] == ["data"]


def test_a_file_system_that_became_read_only_is_named(small_disk: Path) -> None:
    storage = Storage(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(MachineError, match=rf"{small_disk}: expected to take data, got read-only file system; make room"):
        storage.check_room()


async def test_a_run_whose_stages_fill_the_disk_ends_instead_of_restarting_them(small_disk: Path) -> None:
    script = f"open({str(small_disk / 'data')!r}, 'ab').write(bytes(4 << 20))"
    spec = ProcessSpec(name="learner", command=(sys.executable, "-I", "-c", script))
    supervisor = Supervisor([spec], small_disk / "run", ClusterWatch(lambda: True))
    await supervisor.hold()
    await supervisor.start()
    async with asyncio.timeout(20):
        with pytest.raises(MachineError, match=rf"{small_disk / 'run'}: expected to take data, got no space left on device"):
            await supervisor.wait()
    await supervisor.stop()
    assert [state.restarts for state in supervisor.states()] == [0]


def test_a_directory_is_known_by_more_than_its_name(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    storage = Storage(directory)
    storage.check()
    directory.rename(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError, match="got none"):
        storage.check()
    directory.mkdir()
    with pytest.raises(UnavailableError, match="got another one"):
        storage.check_room()
    assert list(directory.iterdir()) == []


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x"), "x: expected to take data, got no space left on device"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "disk: expected to take data, got disk quota exceeded"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "disk: expected to take data, got no space left on"),
        (chained(ValueError("x"), OSError(errno.EROFS, "x")), "disk: expected to take data, got read-only file system"),
        (OSError(errno.ENOENT, "x"), ""),
        (None, ""),
    ],
)
def test_what_a_machine_lacks_is_read_from_errors_of_all_kinds(error: Exception | None, expected: str) -> None:
    assert lack_of(error).startswith(expected)
    assert bool(lack_of(error)) == bool(expected)
