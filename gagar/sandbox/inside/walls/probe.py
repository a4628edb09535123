"""Tries every wall from the place of a candidate: `python3 -m gagar.sandbox.inside.walls.probe JSON`.

In: what there is on the host to be reached (`Targets`). Out: a line `WALL <wall>: <what was possible>` for each wall that did
not hold, `walls-tried` at the end. What only the host can see (a datagram that arrived, a process that was killed) the host
looks at.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from gagar.sandbox.inside import linux

READ_ONLY = ("/", "/usr", "/etc", "/dev", "/gagar", "/gagar/lib", "/proc/sys/kernel", "/proc/self", os.path.dirname(__file__))
ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_")
_GET_NO_NEW_PRIVILEGES = 39
_CAPABILITY_VERSION = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What lies outside, for all to use but those in the sandbox."""

    secret: str
    """A file that everybody may read."""
    port: int
    """Of a TCP server on 127.0.0.1."""
    datagram_port: int
    """Of a UDP socket there."""
    socket: str
    """Path of a UNIX socket that somebody listens on."""
    abstract_socket: str
    """Name of one, without the zero byte before it."""
    process: int
    """One that only waits."""


def broken_walls(targets: Targets) -> Iterator[tuple[str, str]]:
    """Wall, and what was possible."""
    for wall, probe in (
        ("network", _network),
        ("files", _files),
        ("file names", _file_names),
        ("file modes", _file_modes),
        ("process numbers", _process_numbers),
        ("processes", _processes),
        ("environment", _environment),
        ("privileges", _privileges),
        ("user", _user),
    ):
        yield from ((wall, what) for what in probe(targets))


def _works(attempt: Callable[[], object]) -> bool:
    with suppress(OSError, ValueError):
        attempt()
        return True
    return False


def _network(targets: Targets) -> Iterator[str]:
    def connect(family: int, address: str | tuple[str, int]) -> Callable[[], object]:
        def attempt() -> None:
            with socket.socket(family, socket.SOCK_STREAM) as handle:
                handle.settimeout(2.0)
                handle.connect(address)

        return attempt

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            handle.sendto(b"probe", ("127.0.0.1", targets.datagram_port))

    if _works(connect(socket.AF_INET, ("127.0.0.1", targets.port))):
        yield "a port of the host answers"
    if _works(connect(socket.AF_UNIX, targets.socket)):
        yield "a socket of the host answers"
    if _works(connect(socket.AF_UNIX, "\0" + targets.abstract_socket)):
        yield "an abstract socket of the host answers"
    _works(send)
    with suppress(OSError), open("/proc/net/dev") as file:
        names = (line.partition(":")[0].strip() for line in file.readlines()[2:])
        yield from (f"interface {name}" for name in names if name != "lo")


def _files(targets: Targets) -> Iterator[str]:
    if _works(lambda: open(targets.secret).close()):
        yield f"{targets.secret} can be read"
    if _works(lambda: os.close(os.open(targets.secret, os.O_WRONLY))) or _works(lambda: os.truncate(targets.secret, 0)):
        yield f"{targets.secret} can be written to"
    folders = [*READ_ONLY, *([os.path.dirname(targets.secret)] if os.path.exists(targets.secret) else [])]
    for folder in folders:
        if _works(lambda path=f"{folder}/.gagar-probe": _write_and_remove(path)):  # type: ignore[misc]
            yield f"{folder} can be written to"


def _write_and_remove(path: str) -> None:
    with open(path, "x"):
        os.unlink(path)


def _file_names(targets: Targets) -> Iterator[str]:
    if os.path.exists(targets.secret):
        yield f"{targets.secret} is visible"


def _file_modes(targets: Targets) -> Iterator[str]:
    if _works(lambda: os.chmod(targets.secret, 0o600)) or _works(lambda: os.utime(targets.secret)):
        yield f"mode or times of {targets.secret} can be changed"


def _process_numbers(targets: Targets) -> Iterator[str]:
    if os.path.exists(f"/proc/{targets.process}"):
        yield f"process {targets.process} is visible"


def _processes(targets: Targets) -> Iterator[str]:
    if _works(lambda: resource.prlimit(targets.process, resource.RLIMIT_NOFILE)):
        yield f"the limits of process {targets.process} can be read"
    for name in ("environ", "mem", "cmdline"):
        if _works(lambda path=f"/proc/{targets.process}/{name}": open(path, "rb").close()):  # type: ignore[misc]
            yield f"{name} of process {targets.process} can be read"
    if _works(lambda: os.kill(targets.process, signal.SIGKILL)):
        yield f"process {targets.process} can be killed"


def _environment(targets: Targets) -> Iterator[str]:
    yield from (name for name in os.environ if name not in ENVIRONMENT and not name.startswith(("PYTHON", "PYTEST_")))


def _privileges(targets: Targets) -> Iterator[str]:
    capabilities = ctypes.create_string_buffer(24)
    linux.check(_libc.capget(struct.pack("Ii", _CAPABILITY_VERSION, 0), capabilities), "capget")
    if any(capabilities.raw):
        yield f"capabilities {capabilities.raw.hex()}"
    if _libc.prctl(_GET_NO_NEW_PRIVILEGES, *[ctypes.c_ulong(0)] * 4) != 1:
        yield "new ones can be gained"
    if _works(lambda: linux.unshare(linux.NEW_USER)):
        yield "a user namespace can be made"


def _user(targets: Targets) -> Iterator[str]:
    if os.getuid() == 0:
        yield "it is root"


def main() -> None:
    """The argument is Targets as JSON."""
    for wall, what in broken_walls(Targets(**json.loads(sys.argv[1]))):
        sys.stdout.write(f"WALL {wall}: {what}\n")
    sys.stdout.write("walls-tried\n")


if __name__ == "__main__":
    main()
