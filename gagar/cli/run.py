"""`gagar run STAGE`: one process of one stage, until it is told to stop or has reached its planned end."""

import asyncio
import logging
import os
import re
import signal
import threading
import time
from contextlib import suppress

import click

from gagar.broker.address import broker_command, broker_dir, cluster_now, running_state
from gagar.cli.run_file import check_run, run_options
from gagar.cli.saved_run import save_unless_saved
from gagar.config import Run
from gagar.errors import ConfigError, GagarError
from gagar.processes.logs import LogFormat, configure_logs
from gagar.processes.orphan_cleanup import VARIABLE
from gagar.stream.spec import Stage
from topology.composition import find_stage, serve
from topology.planned_end import Look, step_of, wait_for_end
from topology.settings import check_settings
from topology.topics import DEAD_LETTERS

logger = logging.getLogger(__name__)

WHAT_THEN = "all but the last evaluation is done; waiting: end it with Ctrl-C, or raise training.num_steps and start all again"


@click.command()
@click.argument("stage", metavar="STAGE")
@click.option("--member", default="", metavar="NAME", help="Name of this process: its partitions wait 45 s for its restart.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@run_options
def run(run: Run, stage: str, member: str, log_format: LogFormat) -> None:
    """Run one process of one STAGE; `gagar topics graph` shows them all.

    Processes of a stage that bear a --member name, each its own, keep their partitions while one of them is restarted.
    """
    chosen = find_stage(stage)
    check_member(member)
    resources = check_run(run)
    resources.member = member
    configure_logs(log_format)
    is_by_hand = VARIABLE not in os.environ and "RANK" not in os.environ
    if is_by_hand:
        check_cluster_works(run, chosen)
    for line in asyncio.run(check_settings(resources)):
        logger.warning("settings of this process alone %s", line)
    if is_by_hand:
        if fault := save_unless_saved(run):
            logger.warning("%s", fault)
        is_past_end = False
        with suppress(GagarError):  # serving tells it better
            is_past_end = asyncio.run(tell_planned_end(run))
        if not is_past_end:
            threading.Thread(target=end_with_run, args=(run,), name="planned end watch", daemon=True).start()
        if not run.kafka.bootstrap_servers:
            threading.Thread(target=watch_local_broker, args=(run,), name="local broker watch", daemon=True).start()
    serve(chosen, resources)


def check_member(name: str) -> None:
    """Raises ConfigError for a name that a cluster would not take."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{0,200}", name):
        raise ConfigError(f"--member: expected at most 200 ASCII letters, digits, '.', '_' and '-', got {name!r}")


def watch_local_broker(run: Run, every_s: float = 5.0) -> None:
    """Says so when the local broker has gone, as it does with the `gagar up` that started it; for ever."""
    was_running = True
    while True:
        time.sleep(every_s)
        is_running = running_state(broker_dir(run)) is not None
        if was_running and not is_running:
            start = broker_command("start", broker_dir(run))
            logger.warning("local broker gone; waiting for it: start it with %s or `gagar up`, or end this with Ctrl-C", start)
        was_running = is_running


def check_cluster_works(run: Run, stage: Stage) -> None:
    """Raises ConfigError if the stage cannot work on the run's cluster as it should, UnavailableError if it cannot now; `gagar
    up` has seen to that for the stages that it starts."""
    from gagar.stream.kafka.admin import Admin
    from gagar.stream.kafka.preflight import check_coordinators, check_sizes

    with Admin(cluster_now(run)) as admin:
        check_coordinators(admin, run.run.name, DEAD_LETTERS)
        check_sizes(admin, run, (*stage.outputs, DEAD_LETTERS))


async def tell_planned_end(run: Run) -> bool:
    """Whether the run has made all its steps. It is logged then, since a stage that starts now waits for records that may never
    come."""
    step, num_steps = await step_of(run), run.training.num_steps
    if step >= num_steps:
        logger.info("planned end reached step=%d num_steps=%d: %s", step, num_steps, WHAT_THEN)
    return step >= num_steps


def end_with_run(run: Run, look_s: float = 10.0, look: Look | None = None) -> None:
    """Waits for the planned end, and ends this process then as a SIGTERM from outside would."""
    try:
        asyncio.run(wait_for_end(run, look_s, look))
    except GagarError as error:  # serving meets it too, and decides
        logger.warning("planned end not watched error=%s", error)
    else:
        logger.info("planned end reached: ending with the run")
        os.kill(os.getpid(), signal.SIGTERM)
