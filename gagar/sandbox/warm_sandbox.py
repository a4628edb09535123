"""The sandbox: workspaces forked from warm servers behind the walls of a jail, on a Linux host or in a container.

In: trees, scripts, test ids. Out: what they did. Kept: the servers, warm; one is started anew if it dies. A workspace that
dies under candidate code is the candidate's failure; only a server that cannot be started is one of the infrastructure.
"""

import asyncio
import itertools
import logging
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec

from gagar.errors import MachineError, UnavailableError
from gagar.sandbox.inside.frames import HEADER
from gagar.sandbox.protocol import CommandResult, SlowStartError, TestRun, Workspace, WorkspaceError
from gagar.sandbox.results import Expected, read_report
from gagar.sandbox.table import SandboxTable
from gagar.sandbox.warm_server import Cell, Jail, WarmServer
from gagar.tasks.patches import Tree, check_path

logger = logging.getLogger(__name__)

GRACE_S = 15.0
"""How long a workspace may be late with an answer, on a busy machine."""
MAX_FRAME_BYTES = 256 << 20
MEASURE_S = 10.0
CLOSED = "sandbox: expected it to be open, got a closed one"


class ServerKeeper:
    """The server of one cell: started when it is first needed, and anew if it has died."""

    def __init__(self, cell: Cell, limits: dict[str, int], timeout_s: float) -> None:
        """`timeout_s`: that a start may take."""
        self._cell = cell
        self._limits = limits
        self._timeout_s = timeout_s
        self._starting = asyncio.Lock()
        self._is_closed = False
        self.server: WarmServer | None = None

    async def living_server(self) -> WarmServer:
        """Raises UnavailableError if it cannot be started."""
        async with self._starting:
            if self._is_closed:
                raise UnavailableError(CLOSED)
            if self.server is not None and not self.server.is_alive:
                logger.warning("sandbox server died last_words=%s", self.server.last_words)
                await self._stop()
            if self.server is None:
                self.server = await WarmServer.start(self._cell, self._limits, self._timeout_s)
            return self.server

    async def close(self) -> None:
        self._is_closed = True
        await self._stop()

    async def _stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            await server.stop()


def _check_temporary_directory() -> None:
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise MachineError(
            f"sandbox: expected a directory for temporary files, got {error}; set TMPDIR to one that can be written to, or "
            "give the container one: --tmpfs /tmp:exec"
        ) from error


def _tell(jail: Jail, refused: str) -> None:
    """Which jail was opened, what it lacks, and why no stronger one was."""
    missing = ", ".join(jail.missing) or "none"
    if refused:
        logger.warning("sandbox opened kind=%s missing_walls=%s refused=%s", jail.kind, missing, refused)
    else:
        logger.info("sandbox opened kind=%s missing_walls=%s", jail.kind, missing)


class WarmSandbox:
    """The first of some jails in which a server starts and the self-test finds every wall that the jail promises."""

    def __init__(self, table: SandboxTable, find_jails: Callable[[], Sequence[Jail]], *, concurrency: int) -> None:
        """`find_jails`: what to try, the strongest first; raises MachineError if there is none. `concurrency`: workspaces at a
        time."""
        self._limits = table.limits()
        self._start_timeout_s = table.start_timeout_s
        self._find_jails = find_jails
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._names = (str(number) for number in itertools.count())
        self._keepers: list[ServerKeeper] = []
        self._idle: list[ServerKeeper] = []
        """For each workspace that may still start, where it does; the one used last comes first."""
        self.jail: Jail | None = None
        """The one in use while it is open."""
        self.num_workspaces = 0
        """Workspaces that have ended."""
        self.core_s = 0.0
        """Core seconds that they took, all their processes included."""

    async def open(self) -> None:
        _check_temporary_directory()
        reasons: list[str] = []
        ways_out: dict[str, None] = {}
        for jail in self._find_jails():
            try:
                await self._open_in(jail)
            except SlowStartError as error:
                await self.close()
                raise SlowStartError(f"{error}; try again, or set start_timeout_s of its table higher") from None
            except (UnavailableError, WorkspaceError, MachineError) as error:
                reasons.append(self._explain(error))
                ways_out |= {way_out: None for way_out in [jail.way_out(reasons[-1])] if way_out}
                await self.close()
            else:
                _tell(jail, "; ".join([*reasons, *ways_out]))
                return
        raise MachineError(f"sandbox: expected one that holds, got {'; '.join([*reasons, *ways_out])}")

    async def _open_in(self, jail: Jail) -> None:
        from gagar.sandbox.self_test import check_isolation

        self.jail = jail
        cells = await asyncio.to_thread(jail.open, self._concurrency)
        self._keepers = [ServerKeeper(cell, self._limits, self._start_timeout_s) for cell in cells]
        self._idle = [self._keepers[number % len(cells)] for number in range(self._concurrency)]
        await check_isolation(self, jail.missing, self._start_timeout_s)

    def _explain(self, error: Exception) -> str:
        words = [keeper.server.last_words for keeper in self._keepers if keeper.server is not None]
        return ": ".join([str(error), *words[:1]])

    async def close(self) -> None:
        keepers, self._keepers, self._idle = self._keepers, [], []
        await asyncio.gather(*(keeper.close() for keeper in keepers))
        jail, self.jail = self.jail, None
        if jail is not None:
            await asyncio.to_thread(jail.close)

    def workspace(self, tree: Tree) -> AbstractAsyncContextManager[Workspace]:
        return self._workspace(tree)

    @asynccontextmanager
    async def _workspace(self, tree: Tree) -> AsyncIterator[Workspace]:
        for path in tree:
            check_path(path)
        async with self._slots:
            if not self._idle:
                raise UnavailableError(CLOSED)
            keeper = self._idle.pop()
            try:
                async with self._workspace_of(await keeper.living_server(), tree) as workspace:
                    yield workspace
            finally:
                if keeper in self._keepers:
                    self._idle.append(keeper)

    @asynccontextmanager
    async def _workspace_of(self, server: WarmServer, tree: Tree) -> AsyncIterator[Workspace]:
        name = next(self._names)
        reader, writer = await server.open_workspace(name)
        workspace = WarmWorkspace(reader, writer, server)
        try:
            await workspace.write(tree)
            yield workspace
        finally:
            writer.close()
            # Added after the wait: `+=` with it inside would forget what other workspaces added meanwhile.
            core_s = await asyncio.shield(server.end_workspace(name))
            self.core_s += core_s
            self.num_workspaces += 1


class WarmWorkspace:
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
