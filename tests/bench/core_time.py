"""Core seconds of processes."""

import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil


def own_s() -> float:
    """Of this process, all threads, without children."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def tree_s() -> float:
    """Of this process and of all its living descendants, with those that they have waited for."""
    total = own_s()
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # its parent has waited for it: counted there, next time
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def of_process_s(pid: int) -> float:
    """Of a living process, all threads, without children."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def of_command_s(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> tuple[float, int]:
    """Of a command run to its end in `directory`, everything that it has waited for included; and its exit code."""
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=directory, env=environment, stdin=null, stdout=null, stderr=null)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, process.returncode
