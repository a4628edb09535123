"""The bubblewrap sandbox: workspaces forked from a warm server behind bubblewrap's walls, on a Linux host, as root or not.

In: trees, scripts, test ids. Out: what they did. Kept: the server, warm; it is started anew if it dies. A workspace that
dies under candidate code is the candidate's failure; only a server that cannot be started is one of the infrastructure.
"""

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec

from gagar.errors import MachineError, UnavailableError
from gagar.sandbox.inside.frames import HEADER
from gagar.sandbox.jail import find_bubblewraps
from gagar.sandbox.protocol import CommandResult, SlowStartError, TestRun, Workspace, WorkspaceError
from gagar.sandbox.results import Expected, read_report
from gagar.sandbox.table import SandboxTable
from gagar.sandbox.warm_server import WarmServer
from gagar.tasks.patches import Tree, check_path

logger = logging.getLogger(__name__)

GRACE_S = 15.0
"""How long a workspace may be late with an answer, on a busy machine."""
MAX_FRAME_BYTES = 256 << 20
MEASURE_S = 10.0
REFUSED = re.compile("namespace|not permitted|uid map|[Pp]ermission|No space left")
"""In what bubblewrap or the server prints where the kernel or a container refuses what a sandbox is made of."""
WAY_OUT = (
    "; allow user namespaces (sysctl kernel.unprivileged_userns_clone=1; on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0); start a Docker container with --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined, and as root with "
    "--cap-add SYS_ADMIN --cap-add NET_ADMIN"
)


class BubblewrapSandbox:
    """Sandbox by bubblewrap."""

    def __init__(self, table: SandboxTable, *, concurrency: int) -> None:
        """`concurrency`: workspaces at a time."""
        self._limits = table.limits()
        self._start_timeout_s = table.start_timeout_s
        self._slots = asyncio.Semaphore(concurrency)
        self._names = (str(number) for number in itertools.count())
        self._server: WarmServer | None = None
        self._program = ""
        self._starting = asyncio.Lock()
        self.num_workspaces = 0
        """Workspaces that have ended."""
        self.core_s = 0.0
        """Core seconds that they took, all their processes included."""

    async def open(self) -> None:
        from gagar.sandbox.self_test import check_isolation

        reasons: list[str] = []
        for program in find_bubblewraps():
            self._program = program
            try:
                self._server = await self._start()
                await check_isolation(self, self._start_timeout_s)
            except SlowStartError as error:
                await self.close()
                raise SlowStartError(f"{error}; try again, or set start_timeout_s of its table higher") from None
            except (UnavailableError, WorkspaceError) as error:
                words = f": {self._server.last_words}" if self._server is not None else ""
                reasons.append(f"{error}{words}")
                await self.close()
            else:
                logger.info("sandbox opened program=%s", program)
                return
        is_refused = any(REFUSED.search(reason) for reason in reasons)
        raise MachineError(f"sandbox: expected a working bubblewrap, got {'; '.join(reasons)}{WAY_OUT if is_refused else ''}")

    async def _start(self) -> WarmServer:
        return await WarmServer.start(self._program, self._limits, self._start_timeout_s)

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    def workspace(self, tree: Tree) -> AbstractAsyncContextManager[Workspace]:
        return self._workspace(tree)

    @asynccontextmanager
    async def _workspace(self, tree: Tree) -> AsyncIterator[Workspace]:
        for path in tree:
            check_path(path)
        async with self._slots:
            server = await self._living_server()
            name = next(self._names)
            reader, writer = await server.open_workspace(name)
            workspace = BubblewrapWorkspace(reader, writer, server)
            try:
                await workspace.write(tree)
                yield workspace
            finally:
                writer.close()
                # Added after the wait: `+=` with it inside would forget what other workspaces added meanwhile.
                core_s = await asyncio.shield(server.end_workspace(name))
                self.core_s += core_s
                self.num_workspaces += 1

    async def _living_server(self) -> WarmServer:
        async with self._starting:
            server = self._server
            if server is None:
                raise UnavailableError("sandbox: expected it to be open, got a closed one")
            if not server.is_alive:
                logger.warning("sandbox server died last_words=%s", server.last_words)
                await server.stop()
                server = self._server = await self._start()
            return server


class BubblewrapWorkspace:
    """One workspace; see protocol.Workspace."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: WarmServer) -> None:
        self._reader = reader
        self._writer = writer
        self._server = server
        self._death = ""

    async def write(self, tree: Tree) -> None:
        """Lays files down over those that are there. Nothing of a candidate's has run yet, so silence is the machine's."""
        try:
            await self._ask({"do": "write", "tree": dict(tree)}, 0.0)
        except WorkspaceError as error:
            if isinstance(error.__cause__, TimeoutError):
                raise UnavailableError(f"sandbox: expected a workspace within {GRACE_S:g} s, got none yet") from error
            raise

    async def run(self, script: str, timeout_s: float) -> CommandResult:
        try:
            answer = await self._ask({"do": "run", "script": script, "timeout_s": timeout_s}, timeout_s)
        except WorkspaceError as error:
            return CommandResult(exit_code=-1, output=str(error), is_timeout=True)
        return msgspec.convert(answer, CommandResult)

    async def read_tree(self) -> dict[str, str]:
        answer = await self._ask({"do": "read"}, 0.0)
        if "tree" not in answer:
            raise WorkspaceError("workspace: expected a tree within its bounds, got too many files or bytes")
        tree: dict[str, str] = answer["tree"]
        return tree

    async def run_tests(self, test_ids: Sequence[str], timeout_s: float, conftests: Sequence[str] = ()) -> TestRun:
        expected = Expected(test_ids=test_ids, canary=f"test_{secrets.token_hex(8)}", nonce=secrets.token_hex(16))
        request = {"do": "test", "ids": list(test_ids), "conftests": list(conftests), "timeout_s": timeout_s}
        started = time.monotonic()
        try:
            answer = await self._ask(request | {"canary": expected.canary, "nonce": expected.nonce}, timeout_s)
        except WorkspaceError as error:
            answer = {"report": "", "is_timeout": False, "output": str(error)}
        return read_report(
            answer["report"],
            expected,
            is_timeout=answer["is_timeout"],
            output=answer["output"],
            duration_s=time.monotonic() - started,
        )

    async def count_dead_statements(self, base: Tree, result: Tree) -> int:
        request = {"do": "measure", "base": dict(base), "result": dict(result), "timeout_s": MEASURE_S}
        try:
            return int((await self._ask(request, MEASURE_S))["num_dead_statements"])
        except WorkspaceError:
            return 0

    async def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer; raises WorkspaceError if the workspace is dead or mute, UnavailableError if the server is dead."""
        if self._death:
            raise WorkspaceError(self._death)
        payload = msgspec.json.encode(request)
        try:
            self._writer.write(HEADER.pack(len(payload)) + payload)
            async with asyncio.timeout(timeout_s + GRACE_S):
                await self._writer.drain()
                (size,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                if size > MAX_FRAME_BYTES:
                    raise ConnectionError("an answer beyond every bound")
                answer: dict[str, Any] = msgspec.json.decode(await self._reader.readexactly(size))
                return answer
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
            if not self._server.is_alive:
                raise UnavailableError(f"sandbox: expected its server to live, got {self._server.last_words}") from error
            self._death = f"workspace: expected an answer to {request['do']}, got its end or silence"
            raise WorkspaceError(self._death) from error
