"""The jail of Landlock: a server for each workspace, in folders of its own, as a user of its own where we are root.

In: what this machine has. Out: how each server is started. Kept: a folder with the library and the workspaces' folders; it is
removed when the jail is closed, or at the next start if this process is killed. What Landlock and the filter beside it close is
told in gagar.sandbox.inside.walls.landlock; raises MachineError if the kernel is too old.
"""

import fcntl
import json
import os
import platform
import pwd
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gagar.errors import MachineError
from gagar.sandbox.inside.walls import rules, seccomp
from gagar.sandbox.inside.walls.emptying import empty
from gagar.sandbox.jail import DEVICES, ETC, SYSTEM, environment, library_files, python
from gagar.sandbox.warm_server import Cell, Launch

PREFIX = "gagar-sandbox-"
START = """
import os, sys
os.umask(0o022)
sys.path.append({library!r})
from gagar.sandbox.inside.server import main
main()
"""
WAY_OUT = "use Linux 6.12 or newer with `landlock` among its security modules (lsm=landlock,... on its command line)"
ALWAYS_MISSING = ("file names", "process numbers", "disk")
"""See gagar.sandbox.self_test."""
SHARED_USER_MISSING = ("file modes", "process count")
_CHOWN, _SETGID, _SETUID = 0, 6, 7
"""Capabilities, by number."""


@dataclass(frozen=True, kw_only=True)
class LandlockCell:
    """The folders of one server and the user that it becomes. Implements Cell."""

    name: str
    folder: Path
    """Holds `workspace` and `tmp`."""
    library: Path
    user: int
    """0: it stays who we are."""

    def launch(self, control: int, limits: str) -> Launch:
        root, temporary = str(self.folder / "workspace"), str(self.folder / "tmp")
        walls = {
            "user": self.user,
            "writable": [root, temporary],
            "readable": [*readable_paths(), str(self.library)],
            "devices": [f"/dev/{name}" for name in DEVICES],
        }
        start = START.format(library=str(self.library))
        return Launch(
            command=[python(), "-I", "-S", "-B", "-c", start, str(control), limits, json.dumps(walls)],
            environment=environment(str(self.library), temporary) | {"GAGAR_WORKSPACE": root},
        )


class LandlockJail:
    """Implements Jail."""

    kind = "landlock"

    def __init__(self) -> None:
        self.missing: tuple[str, ...] = ALWAYS_MISSING
        self._folder: Path | None = None
        self._lock = -1

    def open(self, num_workspaces: int) -> Sequence[Cell]:
        check_kernel()
        folder = self._make_folder()
        library = folder / "library"
        copy_library(library)
        users = own_users(num_workspaces, folder)
        if not users:
            self.missing = ALWAYS_MISSING + SHARED_USER_MISSING + (("user",) if os.getuid() == 0 else ())
        return [_make_cell(folder / str(number), library, users[number] if users else 0) for number in range(num_workspaces)]

    def _make_folder(self) -> Path:
        folder = self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        folder.chmod(0o711)
        self._lock = _locked(folder)
        _remove_abandoned(folder)
        return folder

    def way_out(self, reason: str) -> str:
        return ""

    def close(self) -> None:
        if self._folder is not None:
            _remove(self._folder)
            os.close(self._lock)
            self._folder = None


def check_kernel() -> None:
    """Raises MachineError if the kernel has not what this kind of sandbox is made of."""
    abi = rules.abi()
    if abi < rules.MIN_ABI:
        got = f"version {abi} on {platform.release()}" if abi else f"none on {platform.release()}"
        raise MachineError(f"sandbox: expected Landlock of version {rules.MIN_ABI} or newer, got {got}; {WAY_OUT}")
    if not seccomp.is_known():
        raise MachineError(f"sandbox: expected a machine of x86_64 or aarch64, got {platform.machine()}")


def readable_paths() -> list[str]:
    """What candidates may read and execute of the host: its programs and the Python installation."""
    paths = ["/usr", *(f"/{name}" for name in SYSTEM), *(f"/etc/{name}" for name in ETC), os.path.realpath(sys.base_prefix)]
    return [path for path in paths if os.path.exists(path)]


def copy_library(target: Path) -> None:
    """Our own code and the test runner, for every user to read, whoever may read them where they are."""
    for name, source in library_files().items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target / name)
        else:
            shutil.copy2(source, target / name)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def own_users(number: int, folder: Path) -> list[int]:
    """Users that nobody else is, one for each workspace; none if we may not become another user, or if such a user could not
    reach Python or the folder."""
    wanted = sum(1 << capability for capability in (_CHOWN, _SETGID, _SETUID))
    if _effective_capabilities() & wanted != wanted or not all(map(_is_reachable, (Path(python()), Path(os.__file__), folder))):
        return []
    mapped = min(_mapped_ids("uid_map"), _mapped_ids("gid_map"))
    # Above what systemd gives to containers; or, where a namespace has few ids, below what it gives to services.
    first, last = (1_900_000_000, 2_000_000_000) if mapped > 2_000_000_000 else (40_000, 60_000)
    if mapped <= last:
        return []
    users: list[int] = []
    while len(users) < number:
        user = first + secrets.randbelow(last - first)
        if user not in users and not _has_name(user):
            users.append(user)
    return users


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _is_reachable(path: Path) -> bool:
    """Whether a user who owns nothing can read a file, or pass through a folder."""
    resolved = path.resolve()
    is_open = resolved.is_dir() or bool(resolved.stat().st_mode & stat.S_IROTH)
    folders = [resolved, *resolved.parents] if resolved.is_dir() else list(resolved.parents)
    return is_open and all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def _mapped_ids(name: str) -> int:
    """How many ids from 0 on this user namespace has."""
    inside, _, count = Path("/proc/self", name).read_text().splitlines()[0].split()
    return int(count) if inside == "0" else 0


def _has_name(user: int) -> bool:
    with suppress(KeyError):
        return bool(pwd.getpwuid(user))
    return False


def _make_cell(folder: Path, library: Path, user: int) -> LandlockCell:
    folder.mkdir()
    folder.chmod(0o711)
    for name in ("workspace", "tmp"):
        (folder / name).mkdir(mode=0o700)
        if user:
            os.chown(folder / name, user, user)
    return LandlockCell(name="landlock", folder=folder, library=library, user=user)


def _locked(folder: Path) -> int:
    """A lock that lasts as long as this process; see _remove_abandoned."""
    descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _remove_abandoned(own: Path) -> None:
    """Removes the folders of processes of this user that were killed."""
    for folder in own.parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if folder == own or status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder)
            finally:
                os.close(descriptor)


def _remove(folder: Path) -> None:
    with suppress(OSError):
        empty(str(folder))
        folder.rmdir()
