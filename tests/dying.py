"""Processes that die at a chosen point: every place where one of their tasks waits is such a point.

Runs are on an event loop whose clock jumps to the next thing due, so that they cost no waiting and are the same each time: what
a run without a death counts is what the runs with one die at. A point lies after what was done before it and before what comes
after it, as SIGKILL finds a process; nothing but the cleaning up of Python runs after it, over a transport that is dead.
"""

import ast
import asyncio
import inspect
import selectors
import textwrap
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from gagar.stream.memory.transport import MemoryTransport

T = TypeVar("T")
Place = tuple[str, int]
"""File and line."""


class Killed(BaseException):
    """Ends the main thread of a process that dies outside of its event loop."""


class SimulatedClock(selectors.SelectSelector):
    """Waits for nothing but the clock, and makes it jump."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing is left that could ever happen"
        self.now += max(timeout, 0.0)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module. For tasks that wait for each other and for the clock only, not for threads or sockets."""

    def __init__(self) -> None:
        self._clock = SimulatedClock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def deaths_at(num_points: int, double_every: int) -> Iterator[list[int]]:
    """A death at each point, and at every `double_every`-th one more at the same point of the next life."""
    for at in range(1, num_points + 1):
        yield [at]
        if at % double_every == 0:
            yield [at, at]


def simulated() -> asyncio.Runner:
    """Runs coroutines on a simulated loop."""
    return asyncio.Runner(loop_factory=SimulatedLoop)


class Mortal:
    """A process that dies at its `at`-th point (never: 0). Its tasks are those that are created while it `lives`."""

    def __init__(self, at: int = 0) -> None:
        self.num_points = 0
        self.waited_at: set[Place] = set()
        """Every line that something waited at."""
        self.is_dead = False
        self.transport: MemoryTransport | None = None
        self._at = at
        self._tasks: list[asyncio.Task[Any]] = []

    @contextmanager
    def lives(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Around the life of the process; in the end it is killed if it still lives."""
        loop.set_task_factory(self._make_task)  # type: ignore[arg-type]
        try:
            yield
        finally:
            loop.set_task_factory(None)
            self.kill()

    def kill(self) -> None:
        self.is_dead = True
        if self.transport is not None and not self.transport.is_dead:
            self.transport.kill()
        for task in self._tasks:
            task.cancel()

    def pass_point(self) -> None:
        """One more point; kills at the chosen one."""
        if not self.is_dead:
            self.num_points += 1
            if self.num_points == self._at:
                self.kill()

    def pass_point_outside(self) -> None:
        """A point of the main thread, outside of the event loop. Raises Killed."""
        self.pass_point()
        if self.is_dead:
            raise Killed

    async def buried(self) -> None:
        """Until Python has cleaned up after a dead process."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], **named: Any) -> asyncio.Task[T]:
        if getattr(coroutine, "__qualname__", "").startswith("MemoryGroup."):
            return asyncio.Task(coroutine, loop=loop, **named)  # the group's coordinator is not part of the process
        task = asyncio.Task(self._mortal(coroutine), loop=loop, **named)
        task.add_done_callback(lambda _: discard(coroutine))
        self._tasks.append(task)
        return task

    async def _mortal(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self.is_dead:
            raise asyncio.CancelledError
        return await self._counted(coroutine)

    @types.coroutine
    def _counted(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Runs `coroutine`, whose every wait is a point; a dead one is only told to end."""
        proceed: Callable[[Any], Any] = coroutine.send
        value: Any = None
        while True:
            try:
                waited_for = proceed(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.waited_at.update(places(coroutine))
            self.pass_point()
            try:
                proceed, value = coroutine.send, (yield waited_for)
            except BaseException as error:
                proceed, value = coroutine.throw, error
            if self.is_dead and proceed == coroutine.send:
                proceed, value = coroutine.throw, asyncio.CancelledError()


def discard(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Closes a coroutine, and if it never began, those that it was given: nobody will await them."""
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        for value in coroutine.cr_frame.f_locals.values():  # type: ignore[attr-defined]
            for given in value if isinstance(value, tuple) else (value,):
                if inspect.iscoroutine(given):
                    discard(given)
    coroutine.close()


def places(waiting: Any) -> Iterator[Place]:
    """The lines at which a coroutine that waits stands, from the outermost call to the innermost."""
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is not None:
            yield frame.f_code.co_filename, frame.f_lineno
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)


def never_waited_at(owners: Sequence[Any], waited_at: set[Place], elsewhere: set[str]) -> list[str]:
    """The awaits in classes and modules that are not among `waited_at`, as `function: what is awaited`.

    Left out are those that `elsewhere` names, and all of the functions that it names.
    """
    functions = [
        function
        for owner in owners
        for function in vars(owner).values()
        if inspect.iscoroutinefunction(function) and function.__module__ == getattr(owner, "__module__", owner.__name__)
    ]
    missing = [entry for f in functions if f.__qualname__ not in elsewhere for entry in _never_waited_at(f, waited_at)]
    return [entry for entry in missing if entry not in elsewhere]


def _never_waited_at(function: Callable[..., Any], waited_at: set[Place]) -> Iterator[str]:
    source, first = inspect.getsourcelines(function)
    filename = inspect.getsourcefile(function) or ""
    for node in ast.walk(ast.parse(textwrap.dedent("".join(source)))):
        if isinstance(node, ast.Await):
            lines = range(node.lineno + first - 1, (node.end_lineno or node.lineno) + first)
            if not any((filename, line) in waited_at for line in lines):
                yield f"{function.__qualname__}: {ast.unparse(node.value)}"
