"""The warm server: process 1 of the sandbox. Imports everything that tests need before any candidate is known, then forks a
workspace for each that is asked for and ends it, with all it has started, when told to.

In: over the control socket, `start <id>` with one end of a socket pair, and `end <id>`. Out: `ready`, and `ended <id> <core
seconds>` when not one process of the workspace is left. Nothing of one workspace is visible to the next: each has its own
namespaces of processes, mounts, IPC and network, and its own files in memory.
"""

import gc
import json
import os
import select
import signal
import socket
import sys

from gagar.sandbox.inside import linux
from gagar.sandbox.inside.processes import ChildLimits
from gagar.sandbox.inside.workspace import ROOT, serve_workspace

USER = 1000
"""The user inside, of the server as of the workspaces."""
OUTSIDE_USER = 64117
"""The user that it is on the host if the host's user is root: one that owns nothing."""


class Server:
    """Forks and ends workspaces."""

    def __init__(self, control: int, limits: ChildLimits) -> None:
        self.limits = limits
        self.control = socket.socket(fileno=control)
        self.own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.workspaces: dict[int, tuple[int, str]] = {}
        """Process id and name by process descriptor."""

    def serve(self) -> None:
        """Does not return; raises TestProcess in a process that must run tests."""
        # What exists now is shared with every fork: the collector shall not touch it there.
        gc.collect()
        gc.freeze()
        self.control.send(b"ready")
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor == self.control.fileno():
                    self._obey()
                else:
                    self._reap(descriptor)

    def _obey(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self.control, 256, 1)
        if not message:
            os._exit(0)
        verb, name = message.decode().split()
        if verb == "start":
            self._start(name, descriptors[0])
        else:
            self._end(name)

    def _start(self, name: str, stream: int) -> None:
        linux.enter_pid_namespace(self.own_pids)
        linux.unshare(linux.NEW_PIDS)
        process = os.fork()
        if process == 0:
            serve_workspace(stream, self.limits)
        os.close(stream)
        descriptor = os.pidfd_open(process)
        self.workspaces[descriptor] = (process, name)
        self.poll.register(descriptor, select.POLLIN)

    def _end(self, name: str) -> None:
        for process, other in self.workspaces.values():
            if other == name:
                os.kill(process, signal.SIGKILL)

    def _reap(self, descriptor: int) -> None:
        process, name = self.workspaces.pop(descriptor)
        self.poll.unregister(descriptor)
        os.close(descriptor)
        _, _, usage = os.wait4(process, 0)
        self.control.send(f"ended {name} {usage.ru_utime + usage.ru_stime:.6f}".encode())


def enter_namespaces() -> None:
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


def main() -> None:
    """Arguments: the control descriptor, the limits as JSON. Serves until the control socket closes."""
    control, limits = int(sys.argv[1]), ChildLimits(**json.loads(sys.argv[2]))
    enter_namespaces()
    os.chdir(ROOT)
    # Late: to start this session is what takes long, and the namespaces are to be in place before.
    from gagar.sandbox.inside.dead_code import count_dead_statements
    from gagar.sandbox.inside.runner import run_session

    count_dead_statements({}, {"warm_up.py": "x\n"})
    run_session(Server(control, limits).serve)


if __name__ == "__main__":
    main()
