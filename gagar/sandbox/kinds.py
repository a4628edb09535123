"""The kinds of sandboxes. A new one is a SandboxTable and a place in the union."""

from gagar.sandbox.protocol import Sandbox
from gagar.sandbox.table import SandboxTable


class Auto(SandboxTable, frozen=True, kw_only=True, tag="auto"):
    """The strongest kind whose self-test passes on this machine: `bubblewrap`, then `landlock`. The log names it and the walls
    that it lacks."""

    def make(self, concurrency: int) -> Sandbox:
        from gagar.sandbox.jails import every_jail
        from gagar.sandbox.warm_sandbox import WarmSandbox

        return WarmSandbox(self, every_jail, concurrency=concurrency)


class Bubblewrap(SandboxTable, frozen=True, kw_only=True, tag="bubblewrap"):
    """Linux namespaces by bubblewrap, as root or not."""

    def make(self, concurrency: int) -> Sandbox:
        from gagar.sandbox.jail import bubblewrap_jails
        from gagar.sandbox.warm_sandbox import WarmSandbox

        return WarmSandbox(self, bubblewrap_jails, concurrency=concurrency)


class Landlock(SandboxTable, frozen=True, kw_only=True, tag="landlock"):
    """Landlock rules, a seccomp filter and limits of the kernel on processes: needs no capability and no namespace, so it works
    in a default container, as root or not; Linux 6.12 or newer. It lacks walls that bubblewrap has: names, sizes and owners of
    the host's files and the numbers of its processes can be seen, and times and modes of files changed where the workspace's
    user is ours; there is no network, not even a loopback one, and no /dev/shm; what is used of the disk, and of processes, is
    counted a few times a second."""

    def make(self, concurrency: int) -> Sandbox:
        from gagar.sandbox.landlock import LandlockJail
        from gagar.sandbox.warm_sandbox import WarmSandbox

        return WarmSandbox(self, lambda: [LandlockJail()], concurrency=concurrency)


SandboxKinds = Auto | Bubblewrap | Landlock
