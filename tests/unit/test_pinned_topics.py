"""What a look at a stage's topics tells, and what it lets pass."""

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from gagar.errors import GagarError, UnavailableError
from gagar.records import encode
from gagar.stream.memory.transport import MemoryTransport
from gagar.stream.pinned_topics import PinnedTopics
from gagar.stream.spec import Topic
from gagar.stream.transport import Partition, Send, TopicIdentity
from tests.builders import make_request
from tests.contract.test_effects import Worker, requests
from tests.contract.world import FAST, REQUESTS, VERSIONS, MemoryWorld, Process, make_stage, write

Looks = list[Callable[[dict[str, TopicIdentity]], dict[str, TopicIdentity]]]


class LookingTransport(MemoryTransport):
    """What each look after the first makes of the truth; after the last one a failure ends the watch."""

    def __init__(self, world: MemoryWorld, looks: Looks) -> None:
        super().__init__(world.log)
        self._looks: Looks = [lambda found: found, *looks]

    async def describe(self, topics: Sequence[Topic], /) -> dict[str, TopicIdentity]:
        if not self._looks:
            raise AssertionError("nothing was found wrong")
        return self._looks.pop(0)(await super().describe(topics))


def right(found: dict[str, TopicIdentity]) -> dict[str, TopicIdentity]:
    return found


def absent(found: dict[str, TopicIdentity]) -> dict[str, TopicIdentity]:
    return {name: identity for name, identity in found.items() if name != REQUESTS.name}


def down(found: dict[str, TopicIdentity]) -> dict[str, TopicIdentity]:
    raise UnavailableError("topics: expected an answer, got none")


def other_id(found: dict[str, TopicIdentity]) -> dict[str, TopicIdentity]:
    return {**found, VERSIONS.name: TopicIdentity("other", 1)}


def grown(found: dict[str, TopicIdentity]) -> dict[str, TopicIdentity]:
    return {**found, REQUESTS.name: found[REQUESTS.name]._replace(num_partitions=5)}


async def watched(*looks: Callable[[dict[str, TopicIdentity]], dict[str, TopicIdentity]]) -> None:
    pinned = PinnedTopics("stage x", LookingTransport(MemoryWorld(), list(looks)), (REQUESTS, VERSIONS), 4)
    await pinned.pin()
    await pinned.watch(0.0)


@pytest.mark.parametrize(
    ("look", "told"),
    [
        (other_id, r"expected topic policy-versions to be the one with the id 0, got other: it was deleted and made anew"),
        (grown, r"expected topic rollout-requests to keep its 4 partitions, got 5: records of one group"),
    ],
)
async def test_a_topic_that_is_another_one_is_told(look: Callable[..., dict[str, TopicIdentity]], told: str) -> None:
    with pytest.raises(GagarError, match=rf"stage x: {told}.*; start anew under another run\.name"):
        await watched(right, down, look)


async def test_a_topic_that_is_missed_twice_in_a_row_was_deleted() -> None:
    with pytest.raises(GagarError, match="expected topic rollout-requests to be there, got none: it was deleted"):
        await watched(absent, down, absent)


async def test_one_look_that_misses_a_topic_may_be_a_broker_that_starts() -> None:
    with pytest.raises(AssertionError, match="nothing was found wrong"):
        await watched(absent, right, absent, down, right)


async def test_records_of_a_topic_made_anew_that_lie_before_the_position_are_not_skipped_without_a_word() -> None:
    """The reader sees nothing of it: its position is within the new log."""
    world = MemoryWorld()
    await write(world, requests(8))
    worker = Worker()
    async with Process(world, make_stage("effect"), worker, replace(FAST, pin_check_s=0.05)) as process:
        await process.until_finished(8)
        world.log.remake(REQUESTS.name)
        for request in [make_request(f"u-{number:06d}") for number in range(40)]:
            world.log.append(Send(topic=REQUESTS.name, key=request.group_id.encode(), value=encode(request)))
        assert min(world.log.partitions[Partition(REQUESTS.name, number)].end for number in range(4)) > 4
        with pytest.raises(GagarError, match="expected topic rollout-requests to be the one with the id 0, got 1"):
            await process.ended()
