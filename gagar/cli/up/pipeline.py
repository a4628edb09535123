"""The whole pipeline on this machine, for `gagar up` and `gagar demo`: broker, topics, stages, their end and their stop.

In: a run, the processes of its stages, a view. Out: an exit code. A broker that ran before goes on running.
"""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Protocol

import click

from gagar.broker.address import names_cluster
from gagar.broker.local import cluster_of
from gagar.broker.watch import cluster_watch
from gagar.cli.saved_run import save_run
from gagar.cli.topics.planning import MEMBER_WAIT_S, apply_topology, goes_on
from gagar.config import DRAIN_S, KafkaTable, Run
from gagar.errors import UnavailableError
from gagar.processes.orphan_cleanup import OrphanCleanup
from gagar.processes.shutdown import interruption
from gagar.processes.storage import Storage
from gagar.processes.supervised import ProcessSpec, ProcessState
from gagar.processes.supervisor import OnLine, Supervisor
from gagar.stream.kafka.admin import Admin
from topology.stages import SAMPLER


class View(Protocol):
    """What shows a pipeline at work, and what comes after it."""

    @property
    def on_line(self) -> OnLine | None:
        """Called with each line of the stages' logs."""

    async def follow(self, kafka: KafkaTable, supervisor: Supervisor, interrupted: asyncio.Event) -> None:
        """Shows the run until it has ended or is interrupted."""

    async def conclude(self, kafka: KafkaTable, states: Sequence[ProcessState]) -> int:
        """After the stages have stopped, with the broker still there: what is to be done and told; the exit code."""


def run_pipeline(run: Run, specs: Sequence[ProcessSpec], view: View) -> int:
    """Runs a checked run to its end; raises GagarError if it cannot start or go on."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a terminal may be closed before there is anything to stop
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    if names_cluster(run):  # one that does not answer leaves no trace here
        with cluster_of(run) as kafka:
            if any(spec.name == SAMPLER.name for spec in specs):
                check_no_twin(run, kafka)
            return asyncio.run(drive(run, specs, view, kafka))
    with ExitStack() as held:
        held.enter_context(OrphanCleanup(run.directory, is_exclusive=True))  # a second one is refused here
        with cluster_of(run) as kafka:
            return asyncio.run(drive(run, specs, view, kafka, held))


def stopping(specs: Sequence[ProcessSpec]) -> str:
    """What is told while the stages stop."""
    drain_s = max((spec.drain_s for spec in specs), default=0.0)
    if drain_s <= DRAIN_S:
        return "stopping the stages ..."
    return f"stopping the stages: work in progress may take {drain_s:g} s to end; Ctrl-C or SIGTERM again abandons it ..."


async def drive(run: Run, specs: Sequence[ProcessSpec], view: View, kafka: KafkaTable, held: ExitStack | None = None) -> int:
    """The same over a cluster that answers. A run that is in use is refused before anything of it is touched; `held`: it is
    taken already."""
    interrupted = interruption(lambda: supervisor.stop_at_once())  # called by the loop, so not before there is one
    run.dir.mkdir(parents=True, exist_ok=True)
    storage = Storage(run.dir)
    supervisor = Supervisor(specs, run.directory, cluster_watch(run), on_line=view.on_line, held=held)
    await supervisor.hold()
    try:
        await asyncio.to_thread(apply_topology, run)
        storage.check()  # what is saved would make a directory anew that was moved away
        if fault := await asyncio.to_thread(save_run, run):
            click.echo(f"run {run.run.name}: {fault}", err=True)
        if not interrupted.is_set():
            await supervisor.start()
        await view.follow(kafka, supervisor, interrupted)
        states = supervisor.states()
    except UnavailableError:
        storage.check()  # tells the cause of whatever else is missing
        raise
    finally:
        with suppress(OSError):
            click.echo(stopping(specs), err=True)
        await supervisor.stop()
    return await view.conclude(kafka, states)


def check_no_twin(run: Run, kafka: KafkaTable, wait_s: float = MEMBER_WAIT_S) -> None:
    """Raises UnavailableError if a sampler of the run, of which there is one, is at work and goes on to be for `wait_s`.

    On the local broker a lock in the run's directory keeps a second one off; a cluster is shared by more than directories.
    """
    with Admin(kafka) as admin:
        if goes_on(admin, [run.topic(SAMPLER.name)], wait_s):
            raise UnavailableError(
                f"run {run.run.name}: expected no other `gagar up` of it on {kafka.bootstrap_servers}, got a sampler at "
                "work; end that one, take another run.name, or start single stages beside it by `gagar run STAGE`"
            )
