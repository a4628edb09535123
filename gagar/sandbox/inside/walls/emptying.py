"""Folders that candidates have written to: how much lies there, and to empty them, whatever it is."""

import contextlib
import os
import secrets
import stat


def disk_use(folder: str, max_files: int) -> tuple[int, int]:
    """Bytes on disk and number of files and folders; the count stops a little beyond `max_files`. What cannot be looked into
    counts as empty. Things may change meanwhile."""
    num_bytes = num_files = 0
    waiting = [folder]
    while waiting and num_files <= max_files:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                num_files += 1
                with contextlib.suppress(OSError):
                    num_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return num_bytes, num_files


def empty(folder: str) -> None:
    """Removes all that lies in the folder; nothing may be at work there any more. Folders within are brought to the top
    before they are emptied, so that no depth is too deep."""
    prefix = f".{secrets.token_hex(8)}"
    number = 0
    os.chmod(folder, stat.S_IRWXU)
    while names := os.listdir(folder):
        for name in names:
            path = os.path.join(folder, name)
            if not _is_folder(path):
                os.unlink(path)
                continue
            os.chmod(path, stat.S_IRWXU)
            for inner in os.listdir(path):
                inner_path = os.path.join(path, inner)
                if _is_folder(inner_path):
                    os.chmod(inner_path, stat.S_IRWXU)
                    number += 1
                    os.rename(inner_path, os.path.join(folder, f"{prefix}-{number}"))
                else:
                    os.unlink(inner_path)
            os.rmdir(path)


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)
