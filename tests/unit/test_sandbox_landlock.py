"""Landlock's jail: what it asks of the machine, whom it becomes, what its filter refuses, and what it leaves behind."""

import errno
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gagar.errors import MachineError
from gagar.sandbox import landlock
from gagar.sandbox.inside.walls import rules, seccomp
from gagar.sandbox.inside.walls.emptying import disk_use, empty
from gagar.sandbox.inside.walls.landlock import descendants

ALLOWED = seccomp._ALLOW
NUMBERS = {
    "x86_64": {"read": 0, "openat": 257, "fork": 57, "setsid": 112},
    "aarch64": {"read": 63, "openat": 56, "setsid": 157},
}


def outcome(machine: str, number: int, *arguments: int, architecture: int = 0) -> int:
    """What the filter answers to a call: the program, run as the kernel runs it."""
    data = struct.pack(
        "IIQ6Q", number, architecture or seccomp._ARCHITECTURES[machine], 0, *arguments, *[0] * (6 - len(arguments))
    )
    program = [struct.unpack("HBBI", step) for step in seccomp._program(machine)]
    register = position = 0
    while True:
        operation, if_true, if_false, value = program[position]
        position += 1
        if operation == seccomp._RETURN:
            return int(value)
        if operation == seccomp._LOAD:
            register = struct.unpack_from("I", data, value)[0]
            continue
        is_true = {
            seccomp._IS_EQUAL: register == value,
            seccomp._IS_AT_LEAST: register >= value,
            seccomp._HAS_BITS: bool(register & value),
        }[operation]
        position += if_true if is_true else if_false


def refused(number: int) -> int:
    return seccomp._REFUSE | number


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_it_lists_and_lets_the_rest_through(machine: str) -> None:
    column = list(seccomp._ARCHITECTURES).index(machine)
    for numbers, answer in seccomp._REFUSED.values():
        assert outcome(machine, numbers[column]) == refused(answer)
    for number in NUMBERS[machine].values():
        assert outcome(machine, number, 1, 2, 3) == ALLOWED


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_process_may_set_its_own_priority_and_limits_and_nobody_elses(machine: str) -> None:
    column = list(seccomp._ARCHITECTURES).index(machine)
    for name, (numbers, own) in seccomp._OWN_ONLY.items():
        arguments = [dict(own).get(position, 7) for position in range(3)]
        assert outcome(machine, numbers[column], *arguments) == ALLOWED, name
        for position, _ in own:
            others = [*arguments[:position], 4321, *arguments[position + 1 :]]
            assert outcome(machine, numbers[column], *others) == refused(errno.EPERM), name


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_processes_and_pairs_are_made_and_namespaces_and_other_families_are_not(machine: str) -> None:
    column = list(seccomp._ARCHITECTURES).index(machine)
    clone, pair = seccomp._CLONE[column], seccomp._SOCKETPAIR[column]
    assert outcome(machine, clone, 0x01200011) == ALLOWED
    assert outcome(machine, clone, 0x3D0F00) == ALLOWED
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert outcome(machine, clone, flag | 17) == refused(errno.EPERM)
    assert outcome(machine, pair, 1, 1) == ALLOWED
    assert outcome(machine, pair, 2, 1) == refused(errno.EACCES)


def test_another_table_of_calls_is_no_way_around() -> None:
    assert outcome("x86_64", 0x40000000 + 41) == refused(errno.ENOSYS)
    assert outcome("x86_64", 359, architecture=0x40000003) == seccomp._KILL


@pytest.mark.parametrize(
    ("abi", "got"),
    [(0, "expected Landlock of version 6 or newer, got none"), (5, "expected Landlock of version 6 or newer, got version 5")],
)
def test_an_old_kernel_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch, abi: int, got: str) -> None:
    monkeypatch.setattr(rules, "abi", lambda: abi)
    with pytest.raises(MachineError, match=f"{got} on .*; use Linux 6.12 or newer"):
        landlock.check_kernel()


def test_an_unknown_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "abi", lambda: 7)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(MachineError, match="expected a machine of x86_64 or aarch64, got riscv64"):
        landlock.check_kernel()


def test_the_home_and_what_is_ours_are_not_readable() -> None:
    paths = landlock.readable_paths()
    assert "/usr" in paths
    assert not {"/", "/home", "/root", "/etc", "/proc", "/sys", "/tmp", "/var", os.path.expanduser("~"), os.getcwd()} & set(
        paths
    )


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if we were root, and all could be reached."""
    monkeypatch.setattr(landlock, "_effective_capabilities", lambda: 0b11111111)
    monkeypatch.setattr(landlock, "_is_reachable", lambda path: True)
    monkeypatch.setattr(landlock, "_mapped_ids", lambda name: 1 << 32)
    return monkeypatch


def test_root_gives_each_workspace_a_user_that_nobody_is(root: pytest.MonkeyPatch) -> None:
    users = landlock.own_users(64, Path("/"))
    assert len(set(users)) == 64
    assert all(1_900_000_000 <= user < 2_000_000_000 for user in users)
    root.setattr(landlock, "_mapped_ids", lambda name: 65_536)
    assert all(40_000 <= user < 60_000 for user in landlock.own_users(64, Path("/")))


@pytest.mark.parametrize(
    ("name", "answer"), [("_effective_capabilities", 0b1000001), ("_is_reachable", False), ("_mapped_ids", 1)]
)
def test_whoever_cannot_become_another_shares_its_user(root: pytest.MonkeyPatch, name: str, answer: object) -> None:
    root.setattr(landlock, name, lambda *arguments: answer)
    assert landlock.own_users(2, Path("/")) == []


def test_a_folder_for_its_owner_only_is_not_reachable(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    file = tmp_path / "inner" / "file"
    file.touch(mode=0o644)
    (tmp_path / "inner").chmod(0o700)
    assert not landlock._is_reachable(file)
    assert not landlock._is_reachable(tmp_path / "inner")


def test_whatever_lies_in_a_folder_it_is_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    outside = tmp_path / "outside"
    outside.write_text("stays")
    here = os.getcwd()
    folder.mkdir()
    os.chdir(folder)
    try:
        os.symlink(outside, "link")
        os.mkfifo("pipe")
        for _ in range(60):  # far beyond the longest path
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        Path("file").write_text("x" * 10_000)
        Path("locked").mkdir(mode=0)
        os.chmod(".", 0)
    finally:
        os.chdir(here)
    empty(str(folder))
    assert list(folder.iterdir()) == []
    assert outside.read_text() == "stays"


def test_what_a_folder_holds_is_counted_up_to_a_bound(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"x" * 100_000)
    num_bytes, num_files = disk_use(str(tmp_path), 10)
    assert num_files == 2
    assert 100_000 <= num_bytes <= 200_000
    for number in range(100):
        (tmp_path / f"c{number}").mkdir()
    assert disk_use(str(tmp_path), 10)[1] > 10


def test_descendants_are_all_that_a_process_has_started() -> None:
    body = "import os, sys, time\nos.fork()\nsys.stdout.write('x')\nsys.stdout.flush()\ntime.sleep(100)\n"
    with subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(2)
        found = descendants(os.getpid())
        for other in found:
            if other == process.pid or other in descendants(process.pid):
                os.kill(other, 9)
    assert process.pid in found
    assert len(found) >= 2


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(landlock, "check_kernel", lambda: None)
    monkeypatch.setattr(landlock, "own_users", lambda number, folder: [])
    return tmp_path


def test_each_workspace_has_folders_of_its_own_and_none_is_left(temporary: Path) -> None:
    jail = landlock.LandlockJail()
    cells = jail.open(2)
    launches = [cell.launch(5, "{}") for cell in cells]
    assert len({launch.environment["GAGAR_WORKSPACE"] for launch in launches}) == 2
    assert {"disk", "file names", "file modes"} < set(jail.missing)
    (folder,) = temporary.iterdir()
    assert (folder / "library" / "gagar" / "sandbox" / "inside" / "server.py").is_file()
    assert not (folder / "library" / "gagar" / "sandbox" / "landlock.py").exists()
    jail.close()
    assert list(temporary.iterdir()) == []


def test_folders_of_the_living_stay_and_those_of_the_dead_go(temporary: Path) -> None:
    living, dead = landlock.LandlockJail(), landlock.LandlockJail()
    living.open(1)
    dead.open(1)
    os.close(dead._lock)  # as the kernel does with a process that is killed
    third = landlock.LandlockJail()
    third.open(1)
    assert len(list(temporary.iterdir())) == 2
    third.close()
    living.close()
    assert list(temporary.iterdir()) == []


def test_a_library_is_readable_whatever_it_is_copied_from(temporary: Path) -> None:
    old = os.umask(0o077)
    try:
        landlock.copy_library(temporary / "library")
    finally:
        os.umask(old)
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in (temporary / "library").rglob("*"))
