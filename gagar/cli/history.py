"""Reads a run back from its topics, finished or not, and writes its report.

In: a `Run` and the address of its broker. Out: `History`, and the report's path. Memory is bounded as that of
`gagar.report.progress` and `gagar.report.examples` is.
"""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import msgspec

from gagar.config import SHARED, Run
from gagar.records import LogRef, Trajectory, Verdict
from gagar.report.examples import Example, Examples
from gagar.report.progress import Progress, Snapshot
from gagar.report.summary import Summary
from gagar.stream.handlers import Delivery
from gagar.stream.spec import Topic

Scan = Callable[[Sequence[Topic]], AsyncGenerator[Delivery[Any], None]]
"""Deliveries of topics from their start to their present end."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What the topics tell of a run."""

    snapshot: Snapshot
    examples: list[Example]


async def read_history(scan: Scan) -> History:
    """Reads everything but tokens once, then the transcripts of the chosen examples."""
    from topology import topics

    progress, examples = Progress(), Examples()
    async with aclosing(scan(topics_read(with_transcripts=False))) as deliveries:
        async for delivery in deliveries:
            progress.apply(delivery)
            if isinstance(delivery.record, Verdict):
                examples.apply(delivery.record)
    wanted = examples.wanted()
    found: dict[LogRef, Trajectory] = {}
    if wanted:
        async with aclosing(scan([topics.TRAJECTORIES])) as deliveries:
            async for delivery in deliveries:
                if delivery.ref in wanted:
                    found[delivery.ref] = delivery.record
                if len(found) == len(wanted):
                    break
    return History(snapshot=progress.snapshot(), examples=examples.build(found))


def topics_read(*, with_transcripts: bool) -> list[Topic]:
    """The topics that progress is made of."""
    from topology import topics

    left_out = {topics.TRAJECTORY_TOKENS.name} | (set() if with_transcripts else {topics.TRAJECTORIES.name})
    return [topic for topic in topics.TOPICS if topic.name not in left_out]


def scan_of(run: Run, servers: str, *, follow: bool = False) -> Scan:
    """Reads the topics of `run`, to their present end or, with `follow`, on and on."""
    from gagar.stream.kafka.client import scan

    return lambda topics: cast(AsyncGenerator[Delivery[Any], None], scan(servers, run.run.name, topics, follow=follow))


def write_run_report(run: Run, history: History, summary: Summary) -> Path:
    """Writes the report of a run into its directory; returns the page's path."""
    from gagar.report.page import ReportData, write_report

    tables = {name: msgspec.to_builtins(getattr(run, name)) for name in SHARED} | run.stages
    made_at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    data = ReportData(summary=summary, snapshot=history.snapshot, examples=history.examples, tables=tables, made_at=made_at)
    return write_report(run.directory, data)
