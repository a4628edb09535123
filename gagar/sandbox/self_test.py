"""The self-test of a sandbox: tries to get out, and fails closed if a wall that its jail promises does not hold.

In: an open sandbox, and the walls that its jail is known to lack. Out: nothing, or UnavailableError that says which wall is
missing. The walls:

- `network`: nothing outside is reached by a socket, of the internet or of this machine
- `files`: no content of the host's files is read but programs and libraries, and nothing is written outside of the workspace
- `file names`: names, sizes and owners of the host's files cannot be seen
- `file modes`: modes and times of the host's files cannot be changed
- `processes`: no process outside is ended, looked into or limited
- `process numbers`: processes outside cannot be seen
- `environment`, `privileges`, `user`: no variable of the host, no capability and no way to one, not root
- `disk`, `process count` (not tried here): the kernel itself refuses what is beyond the limit
"""

import asyncio
import json
import re
import shlex
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path

from gagar.errors import UnavailableError
from gagar.sandbox.inside.walls.probe import Targets
from gagar.sandbox.protocol import Sandbox, SlowStartError, TestRun

TESTS = "def test_true():\n    assert 1 + 1 == 2\n\n\ndef test_false():\n    assert 1 + 1 == 3\n"
SCRIPT = "python3 -m gagar.sandbox.inside.walls.probe {targets}\nkill -9 -1\n"
WALL = re.compile(r"^WALL ([a-z ]+): .*$", re.MULTILINE)
WAITING = "import time; time.sleep(3600)"
LOWEST_PROCESS = 16
"""Numbers below may be those of a namespace's own processes."""


async def check_isolation(sandbox: Sandbox, missing: Sequence[str], timeout_s: float) -> None:
    """Raises UnavailableError unless every wall but the missing ones stands and the tests of a workspace are told apart, each
    within `timeout_s`."""
    async with _waiting_process() as process:
        with _targets(process) as (targets, arrivals):
            script = SCRIPT.format(targets=shlex.quote(json.dumps(asdict(targets))))
            async with sandbox.workspace({"test_probe.py": TESTS}) as workspace:
                result = await workspace.run(script, timeout_s)
                run = await workspace.run_tests(["test_probe.py::test_true", "test_probe.py::test_false"], timeout_s)
            output = result.output + "".join(f"WALL {wall}\n" for wall in arrivals())
    broken = [match[0] for match in WALL.finditer(output) if match[1] not in missing]
    if not broken and (result.is_timeout or run.is_timeout):
        raise SlowStartError(f"sandbox self-test: expected its end within {timeout_s:g} s, got none yet")
    if broken or "walls-tried" not in output:
        raise UnavailableError(f"sandbox self-test: expected closed walls, got {'; '.join(broken) or repr(output[-500:])}")
    _check_tests(run)


def _check_tests(run: TestRun) -> None:
    facts = (run.passed, run.failed, run.is_complete, run.alarms)
    if facts != (("test_probe.py::test_true",), ("test_probe.py::test_false",), True, ()):
        raise UnavailableError(f"sandbox self-test: expected one passed and one failed test, got {facts} {run.output[-500:]!r}")


@contextmanager
def _targets(process: asyncio.subprocess.Process) -> Iterator[tuple[Targets, "_Arrivals"]]:
    """Things of the host that everybody may use, and what has come of it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        secret = folder / "secret"
        secret.write_text("secret")
        secret.chmod(0o644)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        by_path = stack.enter_context(_listener(str(folder / "socket")))
        (folder / "socket").chmod(0o666)
        by_name = stack.enter_context(_listener(f"\0{folder}"))
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        targets = Targets(
            secret=str(secret),
            port=server.getsockname()[1],
            datagram_port=datagrams.getsockname()[1],
            socket=by_path.getsockname(),
            abstract_socket=by_name.getsockname()[1:].decode(),
            process=process.pid,
        )
        yield targets, _Arrivals(datagrams, process)


def _listener(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    return listener


@asynccontextmanager
async def _waiting_process() -> AsyncIterator[asyncio.subprocess.Process]:
    process = await _start_waiting()
    while process.pid < LOWEST_PROCESS:
        await _end(process)
        process = await _start_waiting()
    try:
        yield process
    finally:
        await _end(process)


async def _start_waiting() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", WAITING)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


class _Arrivals:
    """What only the host can see of attempts to get out."""

    def __init__(self, datagrams: socket.socket, process: asyncio.subprocess.Process) -> None:
        self._datagrams = datagrams
        self._process = process

    def __call__(self) -> list[str]:
        """Walls that did not hold, and why."""
        found = [] if self._process.returncode is None else ["processes: one of the host was killed"]
        try:
            self._datagrams.recv(64)
        except BlockingIOError:
            return found
        return [*found, "network: a datagram has reached the host"]
