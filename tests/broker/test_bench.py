"""The chain that `make bench` measures does its work; its figures are looked at by people."""

from pathlib import Path

import pytest

from gagar.broker.local import broker
from tests.bench.chain import NAMES, Cluster
from tests.bench.throughput import through_chain

pytestmark = pytest.mark.broker


async def test_groups_go_through_the_whole_chain_of_null_stages(kafka_servers: str, tmp_path: Path) -> None:
    """On a broker of its own; `kafka_servers` only says whether there can be one."""
    with broker(tmp_path) as state:
        flow = await through_chain(Cluster(state=state, directory=tmp_path), "bench", num_groups=2)
    assert flow.cores.keys() == {*NAMES, "broker"}
    assert 2 * 8 * 100_000 < flow.stored_bytes < 2 * 8 * 260_000
