"""Starts the ranks of a learner on this machine by torchrun: all of them run, or none.

In: the command of a rank. Out: an exit code. On several machines people start torchrun themselves, with the same command.
torchrun gives each rank a session of its own, so no signal of a terminal reaches it; each rank watches its parent instead.
"""

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

LOOPBACK = "127.0.0.1"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
GRACE_S = 13
"""From the first signal to SIGKILL."""
POLL_S = 0.2
PARENT = "GAGAR_LEARNER_PARENT"
"""Environment variable of a rank that `launch` started: the process that it ends with."""


def launch(command: Sequence[str], num_ranks: int) -> int:
    """Runs `num_ranks` processes to their end, with RANK, WORLD_SIZE and the meeting point in their environment.

    The exit code is 0 if all ended with 0, or were stopped by a signal to this process, which is passed on; else that of the
    first that failed, 1 if a signal killed it. When one fails the others are stopped.
    """
    with _signals_restored(), tempfile.TemporaryDirectory() as logs:
        # From here on torch is loaded: seconds, in which a signal finds nothing to stop.
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo looks up the host's name, which need not resolve
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_ranks,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint=f"{LOOPBACK}:0",
            local_addr=LOOPBACK,
            max_restarts=0,
            shutdown_timeout=GRACE_S,
        )
        os.environ[PARENT] = str(os.getpid())
        program, *arguments = command
        try:
            # torchrun substitutes ${local_rank} in arguments; a $ of ours is only itself.
            elastic_launch(config, program)(*(argument.replace("$", "$$") for argument in arguments))
        except SignalException:
            return 0
        except ChildFailedError as error:
            return max(1, error.get_first_failure()[1].exitcode)
    return 0


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
