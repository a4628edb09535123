"""The topics of a stage, pinned: what they must be when it begins, and a look every few seconds whether they still are that.

In: the stage's topics, and how many partitions the run file says. Out: an error that ends the stage. What a topic has beyond
its name: an id, which is another one when it is deleted and made anew, and a number of partitions, which can be raised. Either
tears groups apart: records lie where the first number has put them, and positions belong to the topic that was there.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from gagar.errors import ConfigError, GagarError, UnavailableError
from gagar.stream.spec import Topic
from gagar.stream.transport import TopicIdentity, Transport

log = logging.getLogger(__name__)

OTHER_NAME = "start anew under another run.name"
MAX_ABSENT = 2
"""Looks in a row that miss a topic, after which it counts as deleted: a broker that starts may not know it yet."""


def wrong_numbers(topics: Iterable[Topic], num_partitions: int, found: Mapping[str, int]) -> list[str]:
    """What to say of each topic that has another number of partitions than it should: `num_partitions` of the run file, or one
    if it is not grouped. `found`: the numbers there are."""
    topics = list(topics)
    is_torn = len({found[topic.name] for topic in topics if topic.is_grouped}) > 1
    return [
        _wrong_number(topic, num_partitions, found[topic.name], is_torn)
        for topic in topics
        if found[topic.name] != topic.count_partitions(num_partitions)
    ]


def _wrong_number(topic: Topic, num_partitions: int, got: int, is_torn: bool) -> str:
    """`is_torn`: grouped topics differ from each other, so that no number is right."""
    if not topic.is_grouped:
        return f"topic {topic.name}: expected 1 partition, got {got}; {OTHER_NAME}"
    way_out = OTHER_NAME if is_torn else f"set kafka.num_partitions={got} if the run was made with it, else {OTHER_NAME}"
    return f"topic {topic.name}: expected {partitions_text(num_partitions)}, as kafka.num_partitions says, got {got}; {way_out}"


def partitions_text(num: int) -> str:
    """Example: `1 partition`."""
    return "1 partition" if num == 1 else f"{num} partitions"


class PinnedTopics:
    """See the module. `pin` once, then `watch`."""

    def __init__(self, owner: str, transport: Transport, topics: Sequence[Topic], num_partitions: int | None) -> None:
        """`num_partitions`: of grouped topics; none: whatever they have, if it is the same for all."""
        self._owner = owner
        self._transport = transport
        self._topics = {topic.name: topic for topic in topics}
        self._num_partitions = num_partitions
        self._pinned: dict[str, TopicIdentity] = {}
        self._absent: dict[str, int] = {}

    async def pin(self) -> None:
        """Takes the topics as they are. Raises UnavailableError if one is not there, ConfigError if one has another number of
        partitions than it should."""
        found = await self._look()
        for name in self._topics:
            if name not in found:
                raise UnavailableError(
                    f"topic {name}: expected it to exist, got nothing; "
                    "run `gagar topics apply` with the --run and --set of this stage"
                )
        self._check({name: identity.num_partitions for name, identity in found.items()})
        self._pinned = found

    def count_partitions(self, topic: Topic) -> int:
        """Of a topic that is pinned."""
        return self._pinned[topic.name].num_partitions

    def topic_id(self, topic: Topic) -> str:
        """Of a topic that is pinned."""
        return self._pinned[topic.name].topic_id

    async def watch(self, every_s: float) -> None:
        """Looks again and again; raises GagarError when a topic is no longer the one that was pinned."""
        while True:
            await asyncio.sleep(every_s)
            try:
                found = await self._look()
            except UnavailableError as error:
                log.debug("topics not looked at owner=%s error=%s", self._owner, error)
                continue
            for name, pinned in self._pinned.items():
                self._compare(name, pinned, found.get(name))

    async def _look(self) -> dict[str, TopicIdentity]:
        return await self._transport.describe(list(self._topics.values()))

    def _check(self, found: Mapping[str, int]) -> None:
        topics = list(self._topics.values())
        grouped = {topic.name: found[topic.name] for topic in topics if topic.is_grouped}
        if self._num_partitions is None and len(set(grouped.values())) > 1:
            raise ConfigError(f"{self._owner}: expected topics of equal partition counts, got {grouped}; {OTHER_NAME}")
        expected = next(iter(grouped.values()), 1) if self._num_partitions is None else self._num_partitions
        if wrong := wrong_numbers(topics, expected, found):
            raise ConfigError("\n".join(f"{self._owner}: {text}" for text in wrong))

    def _compare(self, name: str, pinned: TopicIdentity, found: TopicIdentity | None) -> None:
        self._absent[name] = 0 if found else self._absent.get(name, 0) + 1
        if self._absent[name] >= MAX_ABSENT:
            raise GagarError(f"{self._owner}: expected topic {name} to be there, got none: it was deleted; {OTHER_NAME}")
        if found is None:
            return
        if found.topic_id != pinned.topic_id:
            raise GagarError(
                f"{self._owner}: expected topic {name} to be the one with the id {pinned.topic_id}, got {found.topic_id}: "
                f"it was deleted and made anew, and what it held is missing; {OTHER_NAME}"
            )
        if found.num_partitions != pinned.num_partitions:
            raise GagarError(
                f"{self._owner}: expected topic {name} to keep its {partitions_text(pinned.num_partitions)}, "
                f"got {found.num_partitions}: records of one group would lie in two of them and never meet; {OTHER_NAME}"
            )
