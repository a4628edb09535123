"""The port of sandboxes in the run file: what one workspace may use, whatever kind of sandbox holds it."""

from gagar.config import Kind, require, require_duration
from gagar.sandbox.protocol import Sandbox


class SandboxTable(Kind, frozen=True, kw_only=True):
    """`[<stage>.sandbox]`: a kind of sandbox, and the limits of one workspace."""

    start_timeout_s: float = 60.0
    """Seconds that the sandbox itself may take to start; a busy machine may need more."""
    memory_bytes: int = 2 << 30
    """Address space of each process, and resident memory of all together."""
    processes: int = 128
    """Most processes at a time."""
    file_bytes: int = 64 << 20
    """Most bytes of one file."""
    open_files: int = 256
    """Most open files of one process."""
    disk_bytes: int = 128 << 20
    """Most bytes in each of the tree, /tmp and /dev/shm; they lie in memory."""
    disk_files: int = 20_000
    """Most files and folders in each of the tree, /tmp and /dev/shm."""
    output_bytes: int = 64 << 10
    """Bytes of output of a command or a test run that are kept: its head and its tail."""
    tree_bytes: int = 8 << 20
    """Most bytes that `read_tree` takes out."""
    tree_files: int = 2_000
    """Most files that `read_tree` takes out."""

    def __post_init__(self) -> None:
        require_duration(self.start_timeout_s, "start_timeout_s")
        require(self.memory_bytes >= 256 << 20, "memory_bytes", "at least 256 MiB", self.memory_bytes)
        require(self.open_files >= 256, "open_files", "at least 256", self.open_files)
        for name in self.__struct_fields__:
            require(getattr(self, name) > 0, name, "more than 0", getattr(self, name))

    def limits(self) -> dict[str, int]:
        """What one workspace may use, by name."""
        return {name: getattr(self, name) for name in SandboxTable.__struct_fields__ if name != "start_timeout_s"}

    def make(self, concurrency: int) -> Sandbox:
        """A sandbox with at most `concurrency` workspaces at a time, not yet open."""
        raise NotImplementedError
