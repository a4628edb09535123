"""The port of sandboxes in the run file: what one workspace may use, whatever kind of sandbox holds it."""

from typing import Annotated

from msgspec import Meta

from gagar.config import Kind, Seconds
from gagar.sandbox.protocol import Sandbox


class SandboxTable(Kind, frozen=True, kw_only=True):
    """`[<stage>.sandbox]`: a kind of sandbox, and the limits of one workspace."""

    start_timeout_s: Seconds = 60.0
    """Seconds that the sandbox itself may take to start; a busy machine may need more."""
    memory_bytes: Annotated[int, Meta(ge=256 << 20, description="at least 256 MiB")] = 2 << 30
    """Address space of each process, and resident memory of all together."""
    processes: Annotated[int, Meta(gt=0)] = 128
    """Most processes at a time."""
    file_bytes: Annotated[int, Meta(gt=0)] = 64 << 20
    """Most bytes of one file."""
    open_files: Annotated[int, Meta(ge=256, description="at least 256")] = 256
    """Most open files of one process."""
    disk_bytes: Annotated[int, Meta(gt=0)] = 128 << 20
    """Most bytes in each of the tree, /tmp and /dev/shm; they lie in memory."""
    disk_files: Annotated[int, Meta(gt=0)] = 20_000
    """Most files and folders in each of the tree, /tmp and /dev/shm."""
    output_bytes: Annotated[int, Meta(gt=0)] = 64 << 10
    """Bytes of output of a command or a test run that are kept: its head and its tail."""
    tree_bytes: Annotated[int, Meta(gt=0)] = 8 << 20
    """Most bytes that `read_tree` takes out."""
    tree_files: Annotated[int, Meta(gt=0)] = 2_000
    """Most files that `read_tree` takes out."""

    def limits(self) -> dict[str, int]:
        """What one workspace may use, by name."""
        return {name: getattr(self, name) for name in SandboxTable.__struct_fields__ if name != "start_timeout_s"}

    def make(self, concurrency: int) -> Sandbox:
        """A sandbox with at most `concurrency` workspaces at a time, not yet open."""
        raise NotImplementedError
