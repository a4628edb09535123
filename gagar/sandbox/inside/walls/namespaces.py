"""Walls of Linux namespaces, inside of bubblewrap: each workspace has its own processes, mounts, IPC, network and files in
memory. The kernel ends all processes of a workspace with its first one.
"""

import os
import signal

from gagar.sandbox.inside import linux
from gagar.sandbox.inside.processes import resident_bytes
from gagar.sandbox.inside.walls.protocol import ChildLimits

USER = 1000
"""The user inside, of the server as of the workspaces."""
OUTSIDE_USER = 64117
"""The user that it is on the host if the host's user is root: one that owns nothing."""


class NamespaceWalls:
    """Implements Walls. Process 1 of each namespace is ours: of the server's, and of a workspace's."""

    def __init__(self, memory_mounts: tuple[str, ...]) -> None:
        """`memory_mounts`: folders of which each workspace has its own, in memory."""
        self._memory_mounts = memory_mounts
        self._own_pids = -1

    def enter(self) -> None:
        """Leaves root behind, and becomes process 1 of a namespace that this user, and nobody above, owns."""
        if os.getuid() == 0:
            linux.mount_proc()
            os.setgroups([])
            os.setresgid(OUTSIDE_USER, OUTSIDE_USER, OUTSIDE_USER)
            os.setresuid(OUTSIDE_USER, OUTSIDE_USER, OUTSIDE_USER)
            linux.set_dumpable(True)  # else the maps below belong to root
        user, group = os.getuid(), os.getgid()
        linux.unshare(linux.NEW_USER | linux.NEW_MOUNTS | linux.NEW_PIDS)
        linux.map_user(USER, user, group)
        child = os.fork()
        if child:
            os.closerange(3, 1 << 20)
            os.waitpid(child, 0)
            os._exit(0)
        linux.die_with_parent(signal.SIGKILL)
        linux.mount_proc()
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> int:
        linux.enter_pid_namespace(self._own_pids)
        linux.unshare(linux.NEW_PIDS)
        return os.fork()

    def enclose_workspace(self, limits: ChildLimits) -> None:
        linux.set_dumpable(True)
        linux.unshare(linux.NEW_MOUNTS | linux.NEW_IPC | linux.NEW_NETWORK)
        linux.mount_proc()
        for target in self._memory_mounts:
            linux.mount_tmpfs(target, limits.disk_bytes, limits.disk_files)
        linux.raise_loopback()
        user, group = os.getuid(), os.getgid()
        # A user namespace of its own: its processes are counted apart, and none of them can make another.
        linux.unshare(linux.NEW_USER)
        linux.map_user(user, user, group)
        linux.write_file("/proc/sys/user/max_user_namespaces", "0")
        linux.drop_bounding_set()
        linux.set_dumpable(False)

    def enclose_child(self) -> None:
        linux.drop_capabilities()

    def process_bound(self, limits: ChildLimits) -> int:
        return limits.processes

    def excess(self, limits: ChildLimits) -> str:
        others = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        return "out of memory" if resident_bytes(others) > limits.memory_bytes else ""

    def end(self, process: int) -> None:
        os.kill(process, signal.SIGKILL)

    def clear(self) -> None:
        """What it had in memory is gone with its mounts."""
