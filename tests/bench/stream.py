"""The whole chain, rollout worker to learner, with null handlers, on a local broker of its own.

Throughput against bare clients (interleaved pairs; both compress with zstd, and once more against clients that do not), bytes
on the broker, from the last verdict to visible advantages, memory at a small and a large backlog.
"""

import asyncio
import logging
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from gagar.broker.local import broker
from tests.bench.backlog import peak_memory
from tests.bench.chain import GROUP_SIZE, Cluster
from tests.bench.figures import Part, Spread, number, paired_ratio, percentile, rounded, table
from tests.bench.latency import publish_times
from tests.bench.raw import encoded_pool
from tests.bench.throughput import Flow, through_chain, through_clients

MB = 1e6


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    num_pairs: int = 3
    num_groups: int = 128
    """Of one run of the chain."""
    num_latencies: int = 300
    groups_per_s: float = 5.0
    backlogs: tuple[int, int, int] = (100, 1_000, 10_000)
    """Trajectories. The first does not fill the runtime's windows (4 partitions of 64 deliveries), the second does."""


QUICK = Plan(num_pairs=1, num_groups=8, num_latencies=10, backlogs=(16, 32, 64))


class Flows(msgspec.Struct, frozen=True, kw_only=True):
    """Runs one after the other, round by round."""

    chain: list[Flow] = []
    raw: list[Flow] = []
    """Bare clients, zstd."""
    plain: list[Flow] = []
    """Bare clients, nothing compressed."""


async def measure_flows(cluster: Cluster, plan: Plan) -> Flows:
    """The order turns around from round to round, so that a drift of the machine favours nobody."""
    flows = Flows(chain=[], raw=[], plain=[])
    num = plan.num_groups * GROUP_SIZE
    for pair in range(plan.num_pairs):
        tell(f"throughput, pair {pair + 1} of {plan.num_pairs}")
        for kind in ("chain", "raw", "plain")[:: -1 if pair % 2 else 1]:
            if kind == "chain":
                flows.chain.append(await through_chain(cluster, f"chain{pair}", plan.num_groups))
            elif kind == "raw":
                flows.raw.append(await asyncio.to_thread(through_clients, cluster, f"raw{pair}", num, "zstd"))
            else:
                flows.plain.append(await asyncio.to_thread(through_clients, cluster, f"plain{pair}", num, ""))
    return flows


def tell(what: str) -> None:
    """Progress, for whoever waits."""
    click.echo(f"  {what} ...", err=True)


def trajectory_bytes() -> float:
    """Of both records of one trajectory, on average."""
    pool = encoded_pool()
    return sum(len(value) for records in pool for _, value in records) / len(pool)


async def measure(cluster: Cluster, plan: Plan) -> Part:
    """Everything, one after the other."""
    flows = await measure_flows(cluster, plan)
    tell("publishing times")
    times = await publish_times(cluster, "pace", plan.num_latencies, plan.groups_per_s)
    tell("memory at a backlog")
    peaks = [await peak_memory(cluster, f"backlog{num}", num) for num in plan.backlogs]
    parts = [flow_figures(flows, plan), latency_figures(times, plan), memory_figures(peaks, plan)]
    return Part(
        table="\n\n".join(text for text, _ in parts), figures={key: value for _, part in parts for key, value in part.items()}
    )


def flow_figures(flows: Flows, plan: Plan) -> tuple[str, dict[str, Any]]:
    """Table and figures of the throughput."""
    size, num = trajectory_bytes(), plan.num_groups * GROUP_SIZE
    rates = {kind: [num / flow.seconds for flow in getattr(flows, kind)] for kind in Flows.__struct_fields__}
    ratio, plain_ratio = paired_ratio(rates["chain"], rates["raw"]), paired_ratio(rates["chain"], rates["plain"])
    stored = Spread.of([flow.stored_bytes / num / size for flow in flows.chain])
    names = {"chain": "chain", "raw": "bare clients, zstd", "plain": "bare clients, uncompressed"}
    rows = [
        [name, str(Spread.of(rates[kind])), str(Spread.of([rate * size / MB for rate in rates[kind]]))]
        for kind, name in names.items()
    ]
    title = f"stream: {plan.num_pairs} pairs of {num} trajectories of {size / 1000:.0f} kB, median (range)"
    lines = [
        table(title, ["", "trajectories/s", "MB/s"], rows),
        *(f"  cores in use, {name}: {_cores(getattr(flows, kind))}" for kind, name in names.items()),
        f"  chain over bare clients with zstd: {ratio}; over uncompressed ones: {plain_ratio}",
        f"  bytes on the broker per trajectory byte: {stored}",
    ]
    return "\n".join(lines), {
        **ratio.as_json("ratio_to_raw"),
        **plain_ratio.as_json("ratio_to_raw_uncompressed"),
        "bytes_ratio": rounded(stored.median),
        **Spread.of(rates["chain"]).as_json("trajectories_per_s"),
        **Spread.of([rate * size / MB for rate in rates["chain"]]).as_json("mb_per_s"),
        **Spread.of([rate * size / MB for rate in rates["raw"]]).as_json("raw_mb_per_s"),
        "cores": _mean_cores(flows.chain),
    }


def _mean_cores(flows: list[Flow]) -> dict[str, float]:
    return {name: rounded(sum(flow.cores[name] for flow in flows) / len(flows)) for name in flows[0].cores}


def _cores(flows: list[Flow]) -> str:
    means = _mean_cores(flows)
    return f"{sum(means.values()):.2f}: " + ", ".join(f"{name} {cores:.2f}" for name, cores in means.items())


def latency_figures(times: list[float], plan: Plan) -> tuple[str, dict[str, Any]]:
    """Table and figures of the publishing."""
    found = {f"publish_p{percent}_ms": 1000 * percentile(times, percent) for percent in (50, 99)}
    title = f"stream: last verdict sent to advantages visible, {len(times)} groups at {plan.groups_per_s:g}/s"
    rows = [[number(value) for value in [*found.values(), 1000 * max(times)]]]
    return table(title, ["p50, ms", "p99, ms", "max, ms"], rows), {key: rounded(value) for key, value in found.items()}


def memory_figures(peaks: list[dict[str, int]], plan: Plan) -> tuple[str, dict[str, Any]]:
    """Table and figures of the memory."""
    small, middle, large = peaks
    growth, late_growth = ({stage: large[stage] / base[stage] for stage in large} for base in (small, middle))
    rows = [
        [stage, *(number(peak[stage] / MB) for peak in peaks), number(growth[stage]), number(late_growth[stage])]
        for stage in small
    ]
    names = [f"{num:,}" for num in plan.backlogs]
    header = ["", *(f"at {name}, MB" for name in names), f"over {names[0]}", f"over {names[1]}"]
    return table("stream: peak memory of each stage at a backlog of trajectories", header, rows), {
        "backlog_memory_ratio": rounded(max(growth.values())),
        "backlog_memory_ratio_full_windows": rounded(max(late_growth.values())),
        "backlog_memory_mb": {stage: [rounded(peak[stage] / MB) for peak in peaks] for stage in small},
    }


def run(quick: bool) -> Part:
    """The part `stream`."""
    logging.getLogger("aiokafka").setLevel(logging.ERROR)  # it tells of every try at a topic that has just been made
    with tempfile.TemporaryDirectory(prefix="gagar-bench-") as name:
        directory = Path(name)
        with broker(directory) as state:
            return asyncio.run(measure(Cluster(state=state, directory=directory), QUICK if quick else Plan()))
