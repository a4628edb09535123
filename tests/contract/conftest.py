"""Every contract test runs in memory and on Apache Kafka."""

import asyncio

import pytest

from tests.contract.world import KafkaWorld, MemoryWorld, World


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
async def world(request: pytest.FixtureRequest) -> World:
    """An empty cluster."""
    if request.param == "memory":
        return MemoryWorld()
    kafka = KafkaWorld(request.getfixturevalue("kafka_servers"))
    await asyncio.to_thread(kafka.create_topics)
    return kafka
