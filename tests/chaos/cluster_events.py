"""What is fired at a run on three brokers, besides what befalls one of them: leaders move, and two of the three are away."""

import asyncio
import random
from typing import Any

import msgspec

from gagar.config import KafkaTable
from gagar.errors import UnavailableError
from gagar.stream.kafka.admin import Admin
from tests.broker.cluster import Way, bring_back, send_away
from tests.chaos.events import Arena
from tests.chaos.plan import Plan, real_topics

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
WAYS: tuple[Way, ...] = ("freeze", "kill", "stop")
PREFERRED = 0
"""The kind of election that gives a partition to the first of its replicas."""


class Replicas(msgspec.Struct, frozen=True):
    """Of a partition."""

    leader: int
    nodes: list[int]


async def move_leaders(arena: Arena, stage: str) -> bool:
    """Half of all partitions get another leader, the coordinators' among them. Happened, if one has another now."""
    chance = random.Random(arena.chance.random())
    try:
        return await asyncio.to_thread(_move_leaders, arena.plan, chance)
    except UnavailableError:
        return False


def _move_leaders(plan: Plan, chance: random.Random) -> bool:
    from kafka import TopicPartition  # noqa: TID251  the product moves no leaders

    with Admin(KafkaTable(bootstrap_servers=plan.servers)) as admin, admin._told():
        before = _replicas(admin, plan)
        places = chance.sample(sorted(before), len(before) // 2)
        orders = {TopicPartition(*place): _with_another_first(before[place], chance) for place in places}
        admin._client.alter_partition_reassignments(orders)
        names = {name for name, _ in places}
        numbers = {name: [number for other, number in places if other == name] for name in names}
        admin._client.elect_leaders(PREFERRED, numbers, raise_errors=False)
        after = _replicas(admin, plan)
    return any(after[place].leader not in (before[place].leader, -1) for place in places)


def _replicas(admin: Admin, plan: Plan) -> dict[tuple[str, int], Replicas]:
    names = [*(plan.run.topic(topic.name) for topic in real_topics()), *INTERNAL_TOPICS]
    topics: dict[str, list[dict[str, Any]]] = admin._retried(lambda: admin._partitions(names))
    return {
        (name, partition["partition_index"]): Replicas(partition["leader_id"], partition["replica_nodes"])
        for name, partitions in topics.items()
        for partition in partitions
    }


def _with_another_first(replicas: Replicas, chance: random.Random) -> list[int]:
    first = chance.choice([node for node in replicas.nodes if node != replicas.leader])
    return [first, *(node for node in replicas.nodes if node != first)]


async def lose_quorum(arena: Arena, stage: str) -> bool:
    """Two of the three brokers are away for a time: nothing can be written."""
    two, way = arena.chance.sample(arena.brokers, 2), arena.chance.choice(WAYS)
    leaving = asyncio.create_task(asyncio.to_thread(send_away, two, way))
    try:
        await asyncio.shield(leaving)
        await asyncio.sleep(arena.plan.without_quorum_s)
    finally:
        await leaving
        await asyncio.to_thread(bring_back, two, arena.environment)
    return True
