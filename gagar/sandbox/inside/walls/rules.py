"""Landlock: rules that a process lays on itself and on all that it starts, for good and without any privilege.

In: which paths may be used and how. Kept: nothing here; the kernel keeps the rules. By ctypes on the three system calls: the
packages that bind them are first releases or as good as unused (looked at in December 2026), they would have to be carried
into the sandbox, and what is needed of them is what stands below.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from gagar.sandbox.inside import linux

MIN_ABI = 6
"""Linux 6.12: the first that keeps signals and abstract sockets inside. Before, a process could end any other of its user."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_VERSION = 1
_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEVICE = 1 << 14, 1 << 15
MAKE_CHARACTER_DEVICE, MAKE_BLOCK_DEVICE = 1 << 6, 1 << 11
ALL_FILES = (1 << 16) - 1
"""Every right over files up to ABI 6. What later ones add, sockets by path, is closed by the seccomp filter."""
ALL_TCP = 0b11
ALL_SCOPES = 0b11
"""Abstract sockets, and signals."""

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = ALL_FILES & ~(MAKE_CHARACTER_DEVICE | MAKE_BLOCK_DEVICE | IOCTL_DEVICE)
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEVICE
PROCESSES = READ_FILE | READ_DIR | WRITE_FILE
_OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The version that the kernel answers; 0 if it has no Landlock, or a seccomp profile hides it."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _CREATE_VERSION)))


def keep_inside() -> None:
    """Signals and abstract sockets stay among this process and what it starts."""
    _restrict(_ruleset(0, 0))


def allow_only(paths: Iterable[tuple[str, int]]) -> None:
    """Nothing but these paths, and what lies below, each with its rights; no TCP; signals as in `keep_inside`."""
    ruleset = _ruleset(ALL_FILES, ALL_TCP)
    for path, rights in paths:
        _allow(ruleset, path, rights)
    _restrict(ruleset)


def _ruleset(files: int, tcp: int) -> int:
    attributes = struct.pack("QQQ", files, tcp, ALL_SCOPES)
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    linux.check(ruleset, "landlock_create_ruleset")
    return int(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_A_FILE
        attributes = struct.pack("=Qi", rights, descriptor)
        linux.check(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, attributes, 0), f"landlock_add_rule {path}")
    finally:
        os.close(descriptor)


def _restrict(ruleset: int) -> None:
    linux.forbid_new_privileges()
    linux.check(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
