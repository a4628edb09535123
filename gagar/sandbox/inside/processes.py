"""One candidate process and all that it starts: bounded in time, memory and output, and dead when `run_child` returns.

The caller is process 1 of its namespace, so that one kill reaches every process in it, whatever session or parent it has
chosen.
"""

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from gagar.sandbox.inside import linux

REPORT = 199
"""Descriptor of the child's report; above those that the warm session had open."""
MAX_REPORT_BYTES = 16 << 20
MEMORY_CHECK_S = 0.25
PAGE_BYTES = os.sysconf("SC_PAGESIZE")


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


@dataclass(kw_only=True)
class Ended:
    """How it went. `exit_code` is -1 if it was killed."""

    exit_code: int = -1
    is_timeout: bool = False
    output: bytes = b""
    report: bytes = b""


@dataclass(kw_only=True)
class _Kept:
    """Head and tail of a stream, at most `limit` bytes of it."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    num_dropped: int = 0

    def add(self, data: bytes) -> None:
        room = self.limit // 2 - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        excess = len(self.tail) - self.limit // 2
        if excess > 0:
            del self.tail[:excess]
            self.num_dropped += excess

    def text(self) -> bytes:
        gap = f"\n... {self.num_dropped} bytes left out ...\n".encode() if self.num_dropped else b""
        return bytes(self.head) + gap + bytes(self.tail)


def run_child(start: Callable[[], None], timeout_s: float, limits: ChildLimits, *, has_report: bool = False) -> Ended:
    """Forks; `start` runs in the child, without rights, on /dev/null and pipes. Whatever it raises is the caller's in the
    child."""
    deadline = time.monotonic() + timeout_s
    output, output_end = os.pipe()
    report, report_end = os.pipe() if has_report else (-1, -1)
    child = os.fork()
    if child == 0:
        try:
            _give_up_everything(output_end, report_end, timeout_s, limits)
            start()
        except Exception as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(126)
        os._exit(0)
    os.close(output_end)
    kept = {output: _Kept(limit=limits.output_bytes)}
    if has_report:
        os.close(report_end)
        kept[report] = _Kept(limit=MAX_REPORT_BYTES)
    is_timeout = _watch(child, kept, deadline, limits)
    exit_code = _kill_all(child)
    for descriptor, stream in kept.items():
        while data := os.read(descriptor, 1 << 16):
            stream.add(data)
        os.close(descriptor)
    return Ended(
        exit_code=-1 if is_timeout else exit_code,
        is_timeout=is_timeout,
        output=kept[output].text(),
        report=kept[report].text() if has_report else b"",
    )


def _give_up_everything(output: int, report: int, timeout_s: float, limits: ChildLimits) -> None:
    linux.set_dumpable(True)  # else its own /proc belongs to root
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if report >= 0 and report != REPORT:
        os.dup2(report, REPORT, inheritable=False)
    os.closerange(3, REPORT)
    os.closerange(REPORT + (report >= 0), 1 << 20)
    linux.write_file("/proc/self/oom_score_adj", "1000")
    for kind, bound in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CPU, int(timeout_s) + 2),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (bound, bound))
    linux.drop_capabilities()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _watch(child: int, kept: dict[int, _Kept], deadline: float, limits: ChildLimits) -> bool:
    """Reads until the child has ended or must be killed; whether the time was up."""
    poll = select.poll()
    ended = os.pidfd_open(child)
    for descriptor in (*kept, ended):
        poll.register(descriptor, select.POLLIN)
    memory_check = time.monotonic() + MEMORY_CHECK_S
    try:
        while True:
            now = time.monotonic()
            if now >= deadline:
                return True
            if now >= memory_check:
                if _resident_bytes() > limits.memory_bytes:
                    next(iter(kept.values())).add(b"\n[killed: out of memory]\n")
                    return False
                memory_check = now + MEMORY_CHECK_S
            for descriptor, _ in poll.poll(max(0.0, min(deadline, memory_check) - now) * 1000 + 1):
                if descriptor == ended:
                    return False
                data = os.read(descriptor, 1 << 16)
                if data:
                    kept[descriptor].add(data)
                else:
                    poll.unregister(descriptor)
    finally:
        os.close(ended)


def _resident_bytes() -> int:
    """Memory of all processes of the namespace but this one."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/statm") as file:
                    total += int(file.read().split()[1]) * PAGE_BYTES
            except (OSError, IndexError):
                continue  # it has just ended
    return total


def _kill_all(child: int) -> int:
    """Kills every process of the namespace but this one, waits for all of them; the child's exit code, -1 if killed."""
    exit_code = -1
    while True:
        with contextlib.suppress(ProcessLookupError):
            # A child that ended by itself is a zombie by now, and keeps its exit code.
            os.kill(-1, signal.SIGKILL)
        try:
            process, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return exit_code
        if process == child:
            exit_code = max(-1, os.waitstatus_to_exitcode(status))


def run_bash(script: str, environment: dict[str, str]) -> NoReturn:
    """Becomes bash in the current folder."""
    os.execve("/bin/bash", ["bash", "-c", script], environment)
