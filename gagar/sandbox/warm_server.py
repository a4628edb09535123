"""The warm server as the host sees it: one process behind the walls of a jail, a control socket, and a stream for each
workspace.

In: names of workspaces to start and to end. Out: their streams, and the core seconds that they took. A server that has
died makes every call raise UnavailableError; the sandbox starts another.
"""

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from gagar.errors import MachineError, UnavailableError
from gagar.sandbox.protocol import SlowStartError

END_S = 10.0
MAX_MESSAGE = 256
LAST_BYTES = 600
"""Of what the server printed that are told."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a server is started."""

    command: list[str]
    environment: dict[str, str]
    descriptors: tuple[int, ...] = ()
    """What it is given; closed here when it runs."""


class Cell(Protocol):
    """Where one server is."""

    @property
    def name(self) -> str:
        """Stands before what is said of it."""

    def launch(self, control: int, limits: str) -> Launch:
        """`control`: the descriptor of the server's end of the control socket. `limits`: as JSON."""


class Jail(Protocol):
    """The walls of a kind of sandbox, as the host puts them up."""

    @property
    def kind(self) -> str:
        """As the run file names it."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Walls (see gagar.sandbox.self_test) that it cannot put up here: known once it is open."""

    def open(self, num_workspaces: int) -> Sequence[Cell]:
        """One cell, or as many as there are workspaces at a time; raises MachineError with the way out if this machine has
        not what it needs."""

    def way_out(self, reason: str) -> str:
        """What to do if a server does not start or a wall does not hold, for this reason; empty if nobody knows."""

    def close(self) -> None:
        """Removes what `open` has made; all servers have ended."""


class WarmServer:
    """One running server; `start` makes it."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket, errors: IO[bytes]) -> None:
        self._process = process
        self._control = control
        self._errors = errors
        self._ends: dict[str, asyncio.Future[float]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(control, self._read)

    @classmethod
    async def start(cls, cell: Cell, limits: dict[str, int], timeout_s: float) -> "WarmServer":
        """A server that is ready; raises SlowStartError, or UnavailableError with what it said."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            launch = cell.launch(theirs.fileno(), json.dumps(limits))
        except MachineError:
            ours.close()
            theirs.close()
            raise
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(theirs.fileno(), *launch.descriptors),
                env=launch.environment,
                cwd="/",
            )
        except OSError as error:
            ours.close()
            errors.close()
            raise UnavailableError(f"{cell.name}: expected a program that runs, got {error}") from error
        finally:
            theirs.close()
            for descriptor in launch.descriptors:
                os.close(descriptor)
        server = cls(process, ours, errors)
        try:
            await asyncio.wait_for(asyncio.shield(server._ready), timeout_s)
        except TimeoutError:
            server._ready.cancel()
            await server.stop()
            raise SlowStartError(f"{cell.name}: expected a warm server within {timeout_s:g} s, got none yet") from None
        except UnavailableError:
            words = server.last_words
            await server.stop()
            raise UnavailableError(f"{cell.name}: expected a warm server, got {words}") from None
        return server

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and self._control.fileno() >= 0

    @property
    def last_words(self) -> str:
        """The end of what it printed."""
        if self._errors.closed:
            return "nothing"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_BYTES))
        return self._errors.read().decode(errors="replace").strip().replace("\n", " | ") or "no answer"

    async def open_workspace(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Starts a workspace; the streams carry its frames."""
        ours, theirs = socket.socketpair()
        try:
            self._ends[name] = asyncio.get_running_loop().create_future()
            socket.send_fds(self._control, [f"start {name}".encode()], [theirs.fileno()])
        except OSError as error:
            self._ends.pop(name).cancel()
            ours.close()
            raise UnavailableError(f"sandbox: expected its server to answer, got {error}") from error
        finally:
            theirs.close()
        return await asyncio.open_connection(sock=ours)

    async def end_workspace(self, name: str) -> float:
        """Kills all that the workspace has started, waits until it is dead; the core seconds that it took."""
        end = self._ends.get(name)
        if end is None:
            return 0.0
        try:
            if not end.done():
                self._control.send(f"end {name}".encode())
            return await asyncio.wait_for(asyncio.shield(end), END_S)
        except (TimeoutError, OSError) as error:
            raise UnavailableError(f"sandbox: expected workspace {name} to end, got {error!r}") from error
        finally:
            self._ends.pop(name, None)

    def _read(self) -> None:
        try:
            message = self._control.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._fail()
        elif message == b"ready":
            self._ready.set_result(None)
        else:
            _, name, core_s = message.decode().split()
            end = self._ends.get(name)
            if end is not None and not end.done():
                end.set_result(float(core_s))

    def _fail(self) -> None:
        """The server is gone, and with it every workspace."""
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        error = UnavailableError("sandbox: expected its server to live, got its end")
        if not self._ready.done():
            self._ready.set_exception(error)
        for end in self._ends.values():
            if not end.done():
                end.set_result(0.0)

    async def stop(self) -> None:
        """Ends the server and everything in it. One that was ready may tidy up: it is told by the end of its socket."""
        is_ready = self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None
        if self._control.fileno() >= 0:
            self._fail()
        if is_ready:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), END_S)
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._errors.close()
