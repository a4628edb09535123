"""The chain that `make bench` measures does its work; its figures are looked at by people."""

from pathlib import Path

import pytest

from gagar.broker.local import broker
from tests.bench.chain import NAMES, Cluster
from tests.bench.throughput import through_chain

pytestmark = pytest.mark.broker


async def test_groups_go_through_the_whole_chain_of_null_stages(kafka_servers: str, kafka_directory: Path) -> None:
    with broker(kafka_directory) as state:
        flow = await through_chain(Cluster(state=state, directory=kafka_directory), "bench", num_groups=2)
    assert flow.cores.keys() == {*NAMES, "broker"}
    assert 2 * 8 * 100_000 < flow.stored_bytes < 2 * 8 * 260_000
