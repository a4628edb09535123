"""Starts the ranks of a learner on this machine by torchrun: all of them run, or none.

In: the command of a rank. Out: an exit code. On several machines people start torchrun themselves, with the same command.
torchrun gives each rank a session of its own, so no signal of a terminal reaches it; each rank watches its parent instead.
"""

import logging
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
GRACE_S = 13
"""From the first signal to SIGKILL."""
POLL_S = 0.2
PARENT = "GAGAR_LEARNER_PARENT"
"""Environment variable of a rank that `launch` started: the process that it ends with."""


def launch(command: Sequence[str], num_ranks: int) -> int:
    """Runs `num_ranks` processes to their end, with RANK, WORLD_SIZE and the meeting point in their environment.

    The exit code is 0 if all ended with 0, also on a signal to this process, which is passed on; else that of the first that
    failed, 1 if a signal killed it. When one fails the others are stopped.
    """
    with _signals_restored(), tempfile.TemporaryDirectory() as logs:
        # From here on torch is loaded: seconds, in which a signal finds nothing to stop.
        from torch.distributed.elastic.multiprocessing import SignalException

        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo looks up the host's name, which need not resolve
        os.environ[PARENT] = str(os.getpid())
        agent = _agent(command, num_ranks, logs)
        try:
            failures = [failure.exitcode for failure in agent.run().failures.values()]
            agent.get_worker_group().spec.rdzv_handler.shutdown()
        except SignalException as error:
            failures = _failed_to_stop(agent, error.sigval)
    return max(1, failures[0]) if failures else 0


def _agent(command: Sequence[str], num_ranks: int, logs: str) -> "LocalElasticAgent":
    """What torchrun starts ranks with. `elastic_launch` would hide it, and with it how ranks end that are stopped."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
    from torch.distributed.launcher.api import LaunchConfig

    meeting = RendezvousParameters("c10d", f"{LOOPBACK}:0", uuid.uuid4().hex, 1, 1, local_addr=LOOPBACK)
    program, *arguments = command
    spec = WorkerSpec(
        role="learner",
        local_world_size=num_ranks,
        entrypoint=program,
        args=tuple(argument.replace("$", "$$") for argument in arguments),  # torchrun substitutes ${local_rank}
        rdzv_handler=get_rendezvous_handler(meeting),
        max_restarts=0,
        local_addr=LOOPBACK,
        numa_options=LaunchConfig(1, 1, num_ranks).numa_options,  # torchrun's choice
    )
    return LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=logs), shutdown_timeout=GRACE_S)


def _failed_to_stop(agent: "LocalElasticAgent", passed_on: signal.Signals) -> list[int]:
    """Exit codes of the ranks that did not stop in good order. Those that had not begun end by the signal itself, or say so."""
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    ranks = agent._pcontext
    if not isinstance(ranks, SubprocessContext):
        return []
    codes = {rank: handler.proc.returncode for rank, handler in ranks.subprocess_handlers.items()}
    failed = {rank: code for rank, code in codes.items() if code not in (0, -passed_on, 128 + passed_on)}
    for rank, code in failed.items():
        logger.error("learner rank failed while it stopped rank=%d code=%d", rank, code)
    return list(failed.values())


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Ends this process quietly on SIGTERM until torchrun has its own handlers, which do not stay behind."""
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def end_with_parent() -> None:
    """In a rank: ends this process with code 1 when its parent is gone, or was so before this call, however that happened."""
    parent = int(os.environ.get(PARENT, os.getppid()))
    threading.Thread(target=_watch, args=(parent,), name="parent watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)
