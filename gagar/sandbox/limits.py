"""What one workspace may use: a table of the run file."""

import msgspec

from gagar.config import require


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`limits` of a stage that has a sandbox."""

    memory_bytes: int = 2 << 30
    """Address space of each process, and resident memory of all together."""
    processes: int = 128
    """At a time."""
    file_bytes: int = 64 << 20
    """Of the largest file."""
    open_files: int = 256
    """Of each process."""
    disk_bytes: int = 128 << 20
    """Of the tree, of /tmp and of /dev/shm, each; it is memory."""
    disk_files: int = 20_000
    """Files and folders in each of those places."""
    output_bytes: int = 64 << 10
    """Of a command or a test run, that are kept: its head and its tail."""
    tree_bytes: int = 8 << 20
    """That `read_tree` takes out."""
    tree_files: int = 2_000
    """That `read_tree` takes out."""

    def __post_init__(self) -> None:
        require(self.memory_bytes >= 256 << 20, "limits.memory_bytes", "at least 256 MiB", self.memory_bytes)
        require(self.open_files >= 256, "limits.open_files", "at least 256", self.open_files)
        for name in self.__struct_fields__:
            require(getattr(self, name) > 0, f"limits.{name}", "more than 0", getattr(self, name))
