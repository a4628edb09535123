"""One workspace: the first process behind its walls. Holds the tree, runs what it is asked to in children without rights,
trusts nothing that they leave behind, and ends when its socket does.

In and out: frames, one answer for each request: `write`, `run`, `read`, `test`, `measure`.
"""

import os
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from gagar.sandbox.inside import frames
from gagar.sandbox.inside.dead_code import count_dead_statements
from gagar.sandbox.inside.processes import REPORT, run_bash, run_child
from gagar.sandbox.inside.walls.protocol import ChildLimits, Walls

ROOT = os.environ.get("GAGAR_WORKSPACE", "/workspace")
"""Folder of the tree. The server says so before it imports this, and the candidates are not told."""
SKIPPED_FOLDERS = frozenset({".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"})
MAX_ARGUMENT = 128 << 10
"""Bytes of one argument that Linux takes; longer scripts go through a file."""


class TestProcess(BaseException):
    """Raised in a child that is to run tests: unwinds to the test session that the server was started in."""

    __test__ = False

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request


def serve_workspace(stream: int, limits: ChildLimits, walls: Walls) -> None:
    """Turns this process into a workspace; does not return. Raises TestProcess in a child that runs tests."""
    try:
        _enter(stream, limits, walls)
        requests = socket.socket(fileno=stream)
        workspace = WorkspaceServer(limits, walls)
        while (request := frames.receive(requests)) is not None:
            frames.send(requests, workspace.answer(request))
    except OSError as error:
        sys.stderr.write(f"workspace failed error={error!r}\n")
    os._exit(0)


def _enter(stream: int, limits: ChildLimits, walls: Walls) -> None:
    os.closerange(3, stream)
    os.closerange(stream + 1, 1 << 20)
    walls.enclose_workspace(limits)
    os.chdir(ROOT)


class WorkspaceServer:
    """The requests, by name."""

    def __init__(self, limits: ChildLimits, walls: Walls) -> None:
        self.limits = limits
        self.walls = walls
        self.answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "write": self._write,
            "run": self._run,
            "read": self._read,
            "test": self._test,
            "measure": self._measure,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.answers[request["do"]](request)

    def _write(self, request: dict[str, Any]) -> dict[str, Any]:
        for path, text in request["tree"].items():
            folder = os.path.dirname(path)
            if folder:
                os.makedirs(folder, exist_ok=True)
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
        if too_much := self.walls.excess(self.limits):
            raise OSError(too_much)
        return {}

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        script: str = request["script"]
        if len(script.encode()) >= MAX_ARGUMENT:
            descriptor, path = tempfile.mkstemp(prefix=".script-")
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(script)
            script = f"source {path}"
        ended = run_child(lambda: run_bash(script, dict(os.environ)), request["timeout_s"], self.limits, self.walls)
        return {
            "exit_code": ended.exit_code,
            "is_timeout": ended.is_timeout,
            "output": ended.output.decode(errors="replace"),
        }

    def _read(self, request: dict[str, Any]) -> dict[str, Any]:
        _unlock()
        tree: dict[str, str] = {}
        num_bytes = 0
        for path, data in _regular_files(self.limits.tree_bytes):
            num_bytes += len(data)
            if len(tree) >= self.limits.tree_files or num_bytes > self.limits.tree_bytes:
                return {"too_large": True}
            try:
                tree[path] = data.decode()
            except UnicodeDecodeError:
                continue
        return {"tree": tree}

    def _test(self, request: dict[str, Any]) -> dict[str, Any]:
        _unlock()
        _clear_for_tests(request["conftests"])

        def become_test_process() -> None:
            raise TestProcess(request)

        ended = run_child(become_test_process, request["timeout_s"], self.limits, self.walls, has_report=True)
        return {
            "is_timeout": ended.is_timeout,
            "output": ended.output.decode(errors="replace"),
            "report": ended.report.decode(errors="replace"),
        }

    def _measure(self, request: dict[str, Any]) -> dict[str, Any]:
        def measure() -> None:
            os.write(REPORT, str(count_dead_statements(request["base"], request["result"])).encode())

        ended = run_child(measure, request["timeout_s"], self.limits, self.walls, has_report=True)
        return {"num_dead_statements": int(ended.report) if ended.report.isdigit() else 0}


def _unlock() -> None:
    """Gives back the rights that a candidate has taken from itself: not behind every kind of walls may we pass them over."""
    _unlock_one(".")
    for folder, folders, names in os.walk("."):
        for name in (*folders, *names):
            _unlock_one(os.path.join(folder, name))


def _unlock_one(path: str) -> None:
    mode = os.lstat(path).st_mode
    needed = stat.S_IRWXU if stat.S_ISDIR(mode) else stat.S_IRUSR if stat.S_ISREG(mode) else 0
    if mode & needed != needed:
        os.chmod(path, stat.S_IMODE(mode) | needed)


def _regular_files(max_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Files of the tree and their bytes, a byte beyond the bound at most; links, devices and odd names are left out."""
    folders = [""]
    while folders:
        folder = folders.pop()
        for path in _entries(folder):
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode):
                folders.append(path)
            elif stat.S_ISREG(mode):
                yield path, _bytes_of(path, max_bytes)


def _entries(folder: str) -> list[str]:
    """Paths in a folder, in order, caches left out."""
    names = sorted(name for name in os.listdir(folder or ".") if name not in SKIPPED_FOLDERS and not name.endswith(".pyc"))
    return [f"{folder}/{name}" if folder else name for name in names if _is_text(name)]


def _is_text(path: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in path)


def _bytes_of(path: str, max_bytes: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        return file.read(max_bytes + 1)


def _clear_for_tests(conftests: list[str]) -> None:
    """Removes bytecode, so that what runs is what the sources say, and, if any is protected, every other conftest.py (else none
    is loaded at all)."""
    for folder, folders, names in os.walk("."):
        for name in names:
            path = os.path.normpath(os.path.join(folder, name))
            if name.endswith(".pyc") or (conftests and name == "conftest.py" and path not in conftests):
                os.unlink(path)
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS or name == "__pycache__"]
