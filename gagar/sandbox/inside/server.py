"""The warm server: the first process of the sandbox. Imports everything that tests need before any candidate is known, then
forks a workspace for each that is asked for and ends it, with all it has started, when told to.

In: over the control socket, `start <id>` with one end of a socket pair, and `end <id>`. Out: `ready`, and `ended <id> <core
seconds>` when not one process of the workspace is left. What of one workspace another can see is told by the walls between
them (`walls/`).
"""

import gc
import json
import os
import select
import socket
import sys

from gagar.sandbox.inside.walls.landlock import LandlockWalls
from gagar.sandbox.inside.walls.namespaces import NamespaceWalls
from gagar.sandbox.inside.walls.protocol import ChildLimits, Walls
from gagar.sandbox.inside.workspace import ROOT, serve_workspace

MEMORY_MOUNTS = (ROOT, "/tmp", "/dev/shm")


class Server:
    """Forks and ends workspaces."""

    def __init__(self, control: int, limits: ChildLimits, walls: Walls) -> None:
        self.limits = limits
        self.walls = walls
        self.control = socket.socket(fileno=control)
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
            self._close()
        verb, name = message.decode().split()
        if verb == "start":
            self._start(name, descriptors[0])
        else:
            self._end(name)

    def _start(self, name: str, stream: int) -> None:
        process = self.walls.fork()
        if process == 0:
            serve_workspace(stream, self.limits, self.walls)
        os.close(stream)
        descriptor = os.pidfd_open(process)
        self.workspaces[descriptor] = (process, name)
        self.poll.register(descriptor, select.POLLIN)

    def _end(self, name: str) -> None:
        for process, other in self.workspaces.values():
            if other == name:
                self.walls.end(process)

    def _close(self) -> None:
        for process, _ in self.workspaces.values():
            self.walls.end(process)
        for process, _ in self.workspaces.values():
            os.waitpid(process, 0)
        self.walls.clear()
        os._exit(0)

    def _reap(self, descriptor: int) -> None:
        process, name = self.workspaces.pop(descriptor)
        self.poll.unregister(descriptor)
        os.close(descriptor)
        _, _, usage = os.wait4(process, 0)
        self.walls.clear()
        self.control.send(f"ended {name} {usage.ru_utime + usage.ru_stime:.6f}".encode())


def main() -> None:
    """Arguments: the control descriptor, the limits as JSON, and Landlock's paths as JSON unless the walls are namespaces.
    Serves until the control socket closes."""
    control, limits = int(sys.argv[1]), ChildLimits(**json.loads(sys.argv[2]))
    walls: Walls = LandlockWalls(**json.loads(sys.argv[3])) if len(sys.argv) > 3 else NamespaceWalls(MEMORY_MOUNTS)
    os.environ.pop("GAGAR_WORKSPACE", None)
    walls.enter()
    os.chdir(ROOT)
    # Late: to start this session is what takes long, and the namespaces are to be in place before.
    from gagar.sandbox.inside.dead_code import count_dead_statements
    from gagar.sandbox.inside.runner import run_session

    count_dead_statements({}, {"warm_up.py": "x\n"})
    run_session(Server(control, limits, walls).serve)


if __name__ == "__main__":
    main()
