"""The few system calls that Python 3.11 has no name for: namespaces, mounts, capabilities, the settings of a process, the
loopback device.

Every function raises OSError with what was tried. Nothing here is kept.
"""

import ctypes
import fcntl
import os
import socket
import struct

NEW_MOUNTS = 0x00020000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000

_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_SET_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 4, 24, 36, 38
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 40
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raises OSError if a call of the C library has failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    check(_libc.unshare(flags), f"unshare {flags:#x}")


def enter_pid_namespace(descriptor: int) -> None:
    """Children of this process are born in the namespace of `descriptor` again."""
    check(_libc.setns(descriptor, NEW_PIDS), "setns")


def mount_tmpfs(target: str, num_bytes: int, num_inodes: int) -> None:
    options = f"size={num_bytes},nr_inodes={num_inodes},mode=1777".encode()
    check(_libc.mount(b"tmpfs", target.encode(), b"tmpfs", _NOSUID | _NODEV, options), f"mount tmpfs on {target}")


def mount_proc() -> None:
    check(_libc.mount(b"proc", b"/proc", b"proc", _NOSUID | _NODEV | _NOEXEC, None), "mount proc")


def set_process(option: int, first: int, second: bytes = b"") -> None:
    """prctl; `option` as the kernel's headers number it."""
    none = ctypes.c_ulong(0)
    check(_libc.prctl(option, ctypes.c_ulong(first), second or none, none, none), f"prctl {option}")


def die_with_parent(signal_number: int) -> None:
    set_process(_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Whoever loses its parent below this process becomes its child."""
    set_process(_SET_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """No program executed from here on has more rights than this process."""
    set_process(_SET_NO_NEW_PRIVILEGES, 1)


def set_dumpable(is_dumpable: bool) -> None:
    """Whether processes of the same user may look into this one."""
    set_process(_SET_DUMPABLE, int(is_dumpable))


def drop_bounding_set() -> None:
    """No program executed from here on can gain a capability."""
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # fails for those that this kernel does not know


def drop_capabilities() -> None:
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    check(_libc.capset(header, bytes(24)), "capset")


def map_user(inside: int, outside_user: int, outside_group: int) -> None:
    """Names the one user and group of a new user namespace."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {outside_user} 1"),
        ("gid_map", f"{inside} {outside_group} 1"),
    ):
        write_file(f"/proc/self/{name}", text)


def write_file(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
