"""A seccomp filter against what Landlock does not see: sockets but pairs, system-wide IPC, new namespaces, and calls that set
something of another process by its number.

In: nothing. Kept: nothing here; the kernel keeps the filter for this process and all that it starts. Written by hand, since
the library that writes such programs (libseccomp) is not on every machine; a list of refusals, not of grants, since honest
code calls anything.
"""

import ctypes
import errno
import platform
import struct

from gagar.sandbox.inside import linux

_LOAD, _IS_EQUAL, _IS_AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_MODE_FILTER = 2
_SET_SECCOMP = 22
_OTHER_TABLE = 0x40000000
"""Numbers from here on are x86-64's second table of the same calls."""
_NEW_NAMESPACES = 0x7E020000
_PAIR_FAMILY = 1

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_Numbers = tuple[int, int]
"""Of a system call on x86-64 and on arm64."""
_REFUSED: dict[str, tuple[_Numbers, int]] = {
    "socket": ((41, 198), errno.EACCES),
    "io_uring_setup": ((425, 425), errno.ENOSYS),
    "unshare": ((272, 97), errno.EPERM),
    "setns": ((308, 268), errno.EPERM),
    "clone3": ((435, 435), errno.ENOSYS),  # its flags lie in memory; the C library falls back to clone
    "shmget": ((29, 194), errno.ENOSYS),
    "semget": ((64, 190), errno.ENOSYS),
    "msgget": ((68, 186), errno.ENOSYS),
    "mq_open": ((240, 180), errno.ENOSYS),
    "add_key": ((248, 217), errno.ENOSYS),
    "request_key": ((249, 218), errno.ENOSYS),
    "keyctl": ((250, 219), errno.ENOSYS),
    "bpf": ((321, 280), errno.EPERM),
    "perf_event_open": ((298, 241), errno.EPERM),
    "userfaultfd": ((323, 282), errno.EPERM),
    "fanotify_init": ((300, 262), errno.EPERM),
    "open_by_handle_at": ((304, 265), errno.EPERM),
    "process_madvise": ((440, 440), errno.EPERM),
    "process_mrelease": ((448, 448), errno.EPERM),
    "migrate_pages": ((256, 238), errno.EPERM),
    "move_pages": ((279, 239), errno.EPERM),
}
_OWN_ONLY: dict[str, tuple[_Numbers, tuple[tuple[int, int], ...]]] = {
    "prlimit64": ((302, 261), ((0, 0),)),
    "sched_setaffinity": ((203, 122), ((0, 0),)),
    "sched_setscheduler": ((144, 119), ((0, 0),)),
    "sched_setparam": ((142, 118), ((0, 0),)),
    "sched_setattr": ((314, 274), ((0, 0),)),
    "setpriority": ((141, 140), ((0, 0), (1, 0))),
    "ioprio_set": ((251, 30), ((0, 1), (1, 0))),
}
"""Allowed only if each of these arguments has this value: then the call is about the process itself."""
_SOCKETPAIR: _Numbers = (53, 199)
_CLONE: _Numbers = (56, 220)


def is_known() -> bool:
    """Whether the filter knows the system calls of this machine."""
    return platform.machine() in _ARCHITECTURES


def install() -> None:
    """From here on this process, and what it starts, is refused those calls."""
    code = b"".join(_program(platform.machine()))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("H6xP", len(code) // 8, ctypes.addressof(buffer))
    linux.forbid_new_privileges()
    linux.set_process(_SET_SECCOMP, _MODE_FILTER, program)


def _program(machine: str) -> list[bytes]:
    column = list(_ARCHITECTURES).index(machine)
    steps = [_step(_LOAD, _ARCHITECTURE_AT), _step(_IS_EQUAL, _ARCHITECTURES[machine], 1, 0), _step(_RETURN, _KILL)]
    steps += [_step(_LOAD, _NUMBER_AT), _step(_IS_AT_LEAST, _OTHER_TABLE, 0, 1), _refuse(errno.ENOSYS)]
    for numbers, number in _REFUSED.values():
        steps += [_step(_IS_EQUAL, numbers[column], 0, 1), _refuse(number)]
    for numbers, arguments in _OWN_ONLY.values():
        for position, value in arguments:
            steps += _unless_equal(numbers[column], position, value, errno.EPERM)
    steps += _unless_equal(_SOCKETPAIR[column], 0, _PAIR_FAMILY, errno.EACCES)
    steps += [
        *(_step(_IS_EQUAL, _CLONE[column], 0, 4), _step(_LOAD, _ARGUMENTS_AT)),
        *(_step(_HAS_BITS, _NEW_NAMESPACES, 0, 1), _refuse(errno.EPERM), _step(_LOAD, _NUMBER_AT)),
    ]
    return [*steps, _step(_RETURN, _ALLOW)]


def _unless_equal(number: int, position: int, value: int, refusal: int) -> list[bytes]:
    """Refuses a call whose argument at `position` (its lower half, which is all that the kernel reads of such) is another."""
    return [
        *(_step(_IS_EQUAL, number, 0, 4), _step(_LOAD, _ARGUMENTS_AT + 8 * position)),
        *(_step(_IS_EQUAL, value, 1, 0), _refuse(refusal), _step(_LOAD, _NUMBER_AT)),
    ]


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _REFUSE | number)


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", operation, if_true, if_false, value)
