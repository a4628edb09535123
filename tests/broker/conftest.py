"""Every broker test may have a cluster of its own name."""

import asyncio

import pytest

from tests.contract.world import KafkaWorld


@pytest.fixture
async def world(kafka_servers: str) -> KafkaWorld:
    """An empty cluster."""
    world = KafkaWorld(kafka_servers)
    await asyncio.to_thread(world.create_topics)
    return world
