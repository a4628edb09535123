"""Ids at the command line: their forms, and their completion in the shell.

In: the text of an argument; the words of a command line so far. Out: a checked id; the ids that it may become. Completion is
quick (`COMPLETION_S`), reads a bounded part of the log, starts nothing, and is silent where there is no cluster.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import click

from gagar.cli.saved_run import is_run_file_given, run_names, run_to_read
from gagar.config import Run
from gagar.errors import GagarError
from gagar.history.recent import recent_names
from gagar.records import LogRef
from gagar.stream.handlers import Delivery
from gagar.stream.spec import Topic
from topology.resources import Resources
from topology.topics import DEAD_LETTERS, POLICY_VERSIONS, ROLLOUT_REQUESTS, TRAJECTORIES

COMPLETION_S = 2.0
MAX_IDS = 100
MAX_OFFSET_DIGITS = 18
REF = re.compile(rf"([a-z-]+)\[([0-9]{{1,9}})\]@([0-9]{{1,{MAX_OFFSET_DIGITS}}})")
SHORT = re.compile(rf"([0-9]{{1,9}})@([0-9]{{1,{MAX_OFFSET_DIGITS}}})")
SAMPLE = re.compile(r"(.+)/([0-9]{1,9})", re.DOTALL)


def reference(text: str, topic: Topic) -> LogRef | None:
    """A reference to a record of one topic as logs write it, `trajectories[1]@118`; none of another form."""
    found = REF.fullmatch(text)
    if found is None or found[1] != topic.name:
        return None
    return LogRef(topic=topic.name, partition=int(found[2]), offset=int(found[3]))


class LetterId(click.ParamType[LogRef]):
    """A dead letter: `PARTITION@OFFSET`, or its whole reference."""

    name = "dead letter"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LogRef:
        if isinstance(value, LogRef):
            return value
        if short := SHORT.fullmatch(value):
            return LogRef(topic=DEAD_LETTERS.name, partition=int(short[1]), offset=int(short[2]))
        found = reference(value, DEAD_LETTERS)
        if found is None:
            self.fail(
                f"expected partition and offset as 1@17 (`gagar dead-letters list` tells them), got {value!r}", param, ctx
            )
        return found


class TrajectoryId(click.ParamType[tuple[str, int] | LogRef]):
    """An attempt: `GROUP/SAMPLE`, or a reference to its trajectory."""

    name = "trajectory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int] | LogRef:
        if not isinstance(value, str):
            return cast(tuple[str, int] | LogRef, value)
        if found := reference(value, TRAJECTORIES):
            return found
        sample = SAMPLE.fullmatch(value)
        if sample is None:
            self.fail(f"expected a group and a sample as t-000012/3, or trajectories[1]@118, got {value!r}", param, ctx)
        return sample[1], int(sample[2])


def complete_groups(context: click.Context, option: click.Parameter, text: str) -> list[str]:
    """Groups requested of late."""
    return _completed(context, text, lambda run: _recent(run, ROLLOUT_REQUESTS, lambda delivery: delivery.key))


def complete_versions(context: click.Context, option: click.Parameter, text: str) -> list[str]:
    """Policy versions."""
    return _completed(context, text, lambda run: _recent(run, POLICY_VERSIONS, lambda delivery: str(delivery.record.version)))


def complete_steps(context: click.Context, option: click.Parameter, text: str) -> list[str]:
    """Steps that were made."""
    return _completed(context, text, lambda run: _recent(run, POLICY_VERSIONS, lambda delivery: str(delivery.record.step)))


def complete_letters(context: click.Context, option: click.Parameter, text: str) -> list[str]:
    """Dead letters of late."""
    return _completed(context, text, lambda run: _recent(run, DEAD_LETTERS, _letter))


def complete_tasks(context: click.Context, option: click.Parameter, text: str) -> list[str]:
    """Tasks of the run, from its files."""

    def ids(run: Run) -> list[str]:
        tasks = Resources(run).tasks
        return [*tasks.train.ids, *tasks.heldout.ids]

    return _completed(context, text, ids)


def complete_runs(context: click.Context, option: click.Parameter, text: str) -> list[str]:
    """Runs that were started in `run.dir`."""
    return _completed(context, text, lambda run: run_names(run.dir)[::-1])


def _letter(delivery: Delivery[Any]) -> str:
    is_mark = delivery.record.retried_as is not None
    return "" if is_mark else f"{delivery.ref.partition}@{delivery.ref.offset}"


def _completed(context: click.Context, text: str, ids: Callable[[Run], Sequence[str]]) -> list[str]:
    """What `text` may become; nothing if that cannot be told."""
    logging.disable()  # of the client, which tells of each connection that fails
    try:
        found = ids(_run(context))
    except (GagarError, TimeoutError, OSError):
        return []
    finally:
        logging.disable(logging.NOTSET)
    return [name for name in found if name.startswith(text)][:MAX_IDS]


def _run(context: click.Context) -> Run:
    """The run that the words so far name. Nothing is told."""
    path, overrides = context.params["run_path"], tuple(context.params["overrides"] or ())
    is_file_given = is_run_file_given(context)
    return run_to_read(path, overrides, is_file_given=is_file_given, tell=lambda text: None)


def _recent(run: Run, topic: Topic, name_of: Callable[[Delivery[Any]], str]) -> list[str]:
    async def read() -> list[str]:
        async with asyncio.timeout(COMPLETION_S), Resources(run).opened() as transport:
            return await recent_names(transport, topic, name_of)

    return asyncio.run(read())
