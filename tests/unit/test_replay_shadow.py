"""Shadow topics hold each answer once, however often their writing is interrupted, and no live topic gets one."""

from pathlib import Path

import pytest

from gagar.errors import ConfigError, UnavailableError
from gagar.records import Record
from gagar.replay import shadow
from gagar.replay.shadow import shadows_of
from tests.builders import CLEAN, DEAD_CODE, make_group
from tests.replays import Past
from topology.stages import GRADER

[GRADED, _] = shadows_of(GRADER.outputs, "try-1")
NUM_GROUPS = 10


@pytest.fixture
def past(tmp_path: Path) -> Past:
    past = Past(tmp_path)
    for number in range(NUM_GROUPS):
        past.write(make_group([CLEAN, DEAD_CODE, None], f"t-{number}"))
    return past


async def groups_on_shadows(past: Past) -> list[str]:
    records: list[Record] = await past.read(GRADED)
    return sorted(record.group_id for record in records)  # type: ignore[union-attr]


ALL = sorted(f"t-{number}" for number in range(NUM_GROUPS))


async def test_answers_are_on_topics_of_their_own_in_the_partitions_of_the_live_ones(past: Past) -> None:
    before = past.state()
    await past.replay(GRADER, shadow="try-1")
    assert GRADED.name == "replay.try-1.graded-groups"
    assert await groups_on_shadows(past) == ALL
    assert past.state() == before
    numbers = {delivery.key: delivery.ref.partition for delivery in await past.deliveries(GRADER.inputs[0])}
    assert {delivery.key: delivery.ref.partition for delivery in await past.deliveries(GRADED)} == numbers


async def test_writing_that_was_interrupted_goes_on_and_doubles_nothing(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "BATCH", 4)
    past.log.faults["lost answer"] = [UnavailableError("commit: expected an answer, got none")]
    for call in ("lost answer", "commit", "send"):
        past.log.faults[call] = [UnavailableError(f"{call}: expected an answer, got none")]
        with pytest.raises(UnavailableError, match=call):
            await past.replay(GRADER, shadow="try-1", asked=("--shadow try-1",))
    await past.replay(GRADER, shadow="try-1", asked=("--shadow try-1",))
    await past.replay(GRADER, shadow="try-1", asked=("--shadow try-1",))
    assert await groups_on_shadows(past) == ALL


async def test_an_id_whose_topics_are_there_already_is_refused(past: Past) -> None:
    await past.replay(GRADER, shadow="try-1")
    with pytest.raises(ConfigError, match="--shadow try-1: expected an id without topics, got that of another replay"):
        await past.replay(GRADER, shadow="try-1", name="other")
