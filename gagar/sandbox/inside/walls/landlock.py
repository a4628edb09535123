"""Walls of Landlock: no capability, no namespace, so they stand in a default container too.

Three rings, each a Landlock domain inside of the one before: a guard, the process of a workspace, the candidate's processes.
Signals go inwards only, so `kill(-1)` of a ring ends all that is within it. There is one workspace at a time to a server, in
folders that are its own.

Not there, since Landlock knows nothing of it: a list of processes of its own, a file system of its own (names, sizes and owners
of the host's files can be read, their contents not), a loopback network. Bytes and files on disk, memory and, where the user is
not the server's own, processes are counted a few times a second, and what has too much is ended.
"""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator

from gagar.sandbox.inside import linux
from gagar.sandbox.inside.processes import kill_within, resident_bytes
from gagar.sandbox.inside.walls import rules, seccomp
from gagar.sandbox.inside.walls.emptying import disk_use, empty
from gagar.sandbox.inside.walls.protocol import ChildLimits

OWN_PROCESSES = 3
"""Server, guard and workspace, which have the same user as what they watch."""
SHARED_USER_FACTOR = 4
"""How many times `processes` of a user that others share may start, until they are counted."""
DISK_SHARE = 0.1
"""Most of the time that goes into counting files."""


class LandlockWalls:
    """Implements Walls."""

    def __init__(self, user: int, writable: list[str], readable: list[str], devices: list[str]) -> None:
        """`user`: the server's own, of which nobody else is; 0 to stay who one is. `writable`: folders of the workspace, empty
        before it starts. `readable`: files and folders that candidates may read and execute."""
        self._user = user
        self._writable = writable
        self._paths = [
            *((path, rules.READ) for path in readable),
            *((path, rules.WRITE) for path in writable),
            *((path, rules.DEVICE) for path in devices),
        ]
        self._disk_check = 0.0
        self._guard = 0

    def enter(self) -> None:
        linux.drop_bounding_set()
        if self._user:
            os.setgroups([])
            os.setresgid(self._user, self._user, self._user)
            os.setresuid(self._user, self._user, self._user)
        linux.drop_capabilities()
        linux.forbid_new_privileges()
        linux.adopt_orphans()

    def fork(self) -> int:
        if self._guard:  # one that is slow to end
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._guard, os.WEXITED | os.WNOWAIT)
        self.clear()  # a server that was killed has not
        self._guard = os.fork()
        if self._guard:
            return self._guard
        _guard()
        return 0

    def enclose_workspace(self, limits: ChildLimits) -> None:
        linux.adopt_orphans()
        rules.allow_only([*self._paths, ("/proc", rules.PROCESSES)])

    def enclose_child(self) -> None:
        rules.allow_only(self._paths)
        seccomp.install()

    def process_bound(self, limits: ChildLimits) -> int:
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        if self._user:
            bound = limits.processes + OWN_PROCESSES
        else:
            bound = _num_tasks(os.getuid()) + SHARED_USER_FACTOR * limits.processes
        return bound if most == resource.RLIM_INFINITY else min(bound, most)

    def excess(self, limits: ChildLimits) -> str:
        processes = descendants(os.getpid())
        if len(processes) > limits.processes:
            return "too many processes"
        if resident_bytes(processes) > limits.memory_bytes:
            return "out of memory"
        return self._excess_on_disk(limits)

    def _excess_on_disk(self, limits: ChildLimits) -> str:
        started = time.monotonic()
        if started < self._disk_check:
            return ""
        for folder in self._writable:
            num_bytes, num_files = disk_use(folder, limits.disk_files)
            if num_bytes > limits.disk_bytes or num_files > limits.disk_files:
                return "No space left: too many bytes or files on disk"
        ended = time.monotonic()
        self._disk_check = ended + (ended - started) / DISK_SHARE
        return ""

    def end(self, process: int) -> None:
        os.kill(process, signal.SIGTERM)

    def clear(self) -> None:
        while left := descendants(os.getpid()):  # only if a guard was killed, as when the machine has no memory left
            for process in left:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
        for folder in self._writable:
            empty(folder)


def _guard() -> None:
    """Turns this process into a guard, which waits for its end or its worker's, and then ends whatever is within. Returns in
    the worker."""
    signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    server = os.getppid()
    linux.die_with_parent(signal.SIGTERM)
    linux.adopt_orphans()
    rules.keep_inside()
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        linux.die_with_parent(signal.SIGKILL)
        return
    os.closerange(3, 1 << 20)
    is_over = os.getppid() != server
    while not is_over:
        is_over = signal.sigwait(signals) == signal.SIGTERM or worker in _reaped()
    for _ in kill_within():
        pass
    os._exit(0)


def _reaped() -> Iterator[int]:
    """Children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while process := os.waitpid(-1, os.WNOHANG)[0]:
            yield process


def descendants(process: int) -> list[int]:
    """What the process has started, and what that has; those that have ended and wait to be reaped are left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    waiting = [process]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _num_tasks(user: int) -> int:
    """Processes and threads of a user."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    total += len(os.listdir(f"/proc/{name}/task"))
    return total
