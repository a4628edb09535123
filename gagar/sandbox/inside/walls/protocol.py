"""What a kind of walls does for the warm server, and the limits that it holds workspaces to."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ChildLimits:
    """What one workspace may use. Memory counts for each process and for all of them together."""

    memory_bytes: int
    processes: int
    file_bytes: int
    open_files: int
    disk_bytes: int
    disk_files: int
    output_bytes: int
    tree_bytes: int
    tree_files: int


class Walls(Protocol):
    """Around the server, around each workspace, around each process of a candidate."""

    def enter(self) -> None:
        """Around the server, once, before it imports what takes long."""

    def fork(self) -> int:
        """Like os.fork: the process of a workspace, which later enters and whose end is the end of all that it starts."""

    def enclose_workspace(self, limits: ChildLimits) -> None:
        """Around the process of a workspace, in that process; from then on `os.kill(-1)` there reaches what it has started
        and nothing else, and orphans among those become its children."""

    def enclose_child(self) -> None:
        """Around a process that is about to run what nobody trusts, in that process; the last thing before."""

    def process_bound(self, limits: ChildLimits) -> int:
        """RLIMIT_NPROC of a child."""

    def excess(self, limits: ChildLimits) -> str:
        """What the children of a workspace have used too much of; empty if nothing. Called a few times a second."""

    def end(self, process: int) -> None:
        """Ends the workspace that `fork` has answered, with all that it has started; does not wait."""

    def clear(self) -> None:
        """Removes what a workspace that has ended leaves behind."""
