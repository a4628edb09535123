"""Measures of a patch: the facts by which the `rules` grader orders and reports count.

In: the tree before and after, and the task's scope. Out: a PatchMeasures. Pure. Not counted here: dead statements, since
parsing what a candidate wrote is not for this process; a sandbox does that (`gagar.sandbox.inside.dead_code`).
"""

import hashlib
from collections.abc import Sequence

from gagar.records import PatchMeasures
from gagar.tasks.patches import Tree, changed_files, make_patch


def is_in_scope(path: str, scope: Sequence[str]) -> bool:
    """Whether `scope` names the file or a folder above it; an empty scope names all."""
    return not scope or any(path == name or path.startswith(f"{name.rstrip('/')}/") for name in scope)


def measure_patch(base: Tree, result: Tree, scope: Sequence[str]) -> PatchMeasures:
    """Counts of the lines and files that differ; the dead statements are left at 0, for a sandbox to count."""
    files = changed_files(base, result)
    added, removed = _count_lines(make_patch(base, result))
    return PatchMeasures(
        num_added_lines=added,
        num_removed_lines=removed,
        num_files=len(files),
        num_files_out_of_scope=sum(not is_in_scope(path, scope) for path in files),
    )


def _count_lines(patch: str) -> tuple[int, int]:
    """Added and removed lines of a patch that `make_patch` made."""
    added = removed = 0
    is_in_hunk = False
    for line in patch.split("\n"):
        if line.startswith("diff --git "):
            is_in_hunk = False
        elif line.startswith("@@ "):
            is_in_hunk = True
        elif is_in_hunk:
            added += line.startswith("+")
            removed += line.startswith("-")
    return added, removed


def patch_digest(patch: str) -> str:
    """sha256 of a patch, hexadecimal; that of `make_patch(base, result)` is the same for all ways to write one change."""
    return hashlib.sha256(patch.encode("utf-8", "surrogatepass")).hexdigest()
