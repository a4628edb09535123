"""One candidate process and all that it starts: bounded in time, memory and output, and dead when `run_child` returns.

The caller stands behind walls of its own, so that one kill reaches every process behind them, whatever session or parent it
has chosen.
"""

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from gagar.sandbox.inside import linux
from gagar.sandbox.inside.walls.protocol import ChildLimits, Walls

REPORT = 199
"""Descriptor of the child's report; above those that the warm session had open."""
MAX_REPORT_BYTES = 16 << 20
CHECK_S = 0.25
PAGE_BYTES = os.sysconf("SC_PAGESIZE")


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


def run_child(
    start: Callable[[], None], timeout_s: float, limits: ChildLimits, walls: Walls, *, has_report: bool = False
) -> Ended:
    """Forks; `start` runs in the child, without rights, on /dev/null and pipes. Whatever it raises is the caller's in the
    child."""
    deadline = time.monotonic() + timeout_s
    output, output_end = os.pipe()
    report, report_end = os.pipe() if has_report else (-1, -1)
    child = os.fork()
    if child == 0:
        try:
            _give_up_everything(output_end, report_end, timeout_s, limits, walls)
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
    is_timeout = _watch(child, kept, deadline, lambda: walls.excess(limits))
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


def _give_up_everything(output: int, report: int, timeout_s: float, limits: ChildLimits, walls: Walls) -> None:
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
        (resource.RLIMIT_NPROC, walls.process_bound(limits)),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CPU, int(timeout_s) + 2),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (bound, bound))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    walls.enclose_child()


def _watch(child: int, kept: dict[int, _Kept], deadline: float, excess: Callable[[], str]) -> bool:
    """Reads until the child has ended or must be killed; whether the time was up."""
    poll = select.poll()
    ended = os.pidfd_open(child)
    for descriptor in (*kept, ended):
        poll.register(descriptor, select.POLLIN)
    check = time.monotonic() + CHECK_S
    try:
        while True:
            now = time.monotonic()
            if now >= deadline:
                return True
            if now >= check:
                if too_much := excess():
                    next(iter(kept.values())).add(f"\n[killed: {too_much}]\n".encode())
                    return False
                check = now + CHECK_S
            for descriptor, _ in poll.poll(max(0.0, min(deadline, check) - now) * 1000 + 1):
                if descriptor == ended:
                    return False
                data = os.read(descriptor, 1 << 16)
                if data:
                    kept[descriptor].add(data)
                else:
                    poll.unregister(descriptor)
    finally:
        os.close(ended)


def resident_bytes(processes: Iterable[int | str]) -> int:
    """Memory of these processes together."""
    total = 0
    for process in processes:
        try:
            with open(f"/proc/{process}/statm") as file:
                total += int(file.read().split()[1]) * PAGE_BYTES
        except (OSError, IndexError):
            continue  # it has just ended
    return total


def _kill_all(child: int) -> int:
    """Kills every process behind these walls but this one, waits for all of them; the child's exit code, -1 if killed."""
    exit_code = -1
    for process, status in kill_within():
        if process == child:
            exit_code = max(-1, os.waitstatus_to_exitcode(status))
    return exit_code


def kill_within() -> Iterator[tuple[int, int]]:
    """Kills every process behind these walls but this one until there is none left; number and status of each that was ours to
    wait for."""
    with contextlib.suppress(ChildProcessError):
        while True:
            with contextlib.suppress(ProcessLookupError):
                # A child that ended by itself is a zombie by now, and keeps its exit code.
                os.kill(-1, signal.SIGKILL)
            yield os.waitpid(-1, 0)
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                yield ended


def run_bash(script: str, environment: dict[str, str]) -> NoReturn:
    """Becomes bash in the current folder."""
    os.execve("/bin/bash", ["bash", "-c", script], environment)
