"""What a rank of the learner tells of itself: its rounds, and its way into the log."""

import asyncio
import time
from pathlib import Path

from consumers.learner.vitals import RankVitals
from gagar.health.judging import judged
from gagar.health.reporter import read_files, reporting
from gagar.health.vitals import HealthFile, Vitals
from gagar.stream.journal import LogJournal
from gagar.training.background import Background
from tests.builders import make_request
from tests.contract.world import DEAD_LETTERS, FAST, OUTCOMES, REQUESTS, MemoryWorld, make_stage, write

TIMEOUT_S = 600.0
STAGE = make_stage("learner", inputs=(REQUESTS,), outputs=(OUTCOMES,))


class Rounds:
    """A rank whose round has just begun."""

    def __init__(self) -> None:
        self.round_at = time.monotonic()


def state_of(vitals: Vitals) -> str:
    file = HealthFile(run="t", stage="learner", pid=1, identity="x", started_at=vitals.at, written_at=vitals.at, vitals=vitals)
    return judged(file, vitals.at).state


def test_a_rank_without_a_journal_starts_works_and_is_stuck_in_a_round_that_others_would_not_wait_for() -> None:
    vitals, rounds = RankVitals(TIMEOUT_S), Rounds()
    assert state_of(vitals.vitals()) == "starting"
    vitals.rounds = rounds
    assert state_of(vitals.vitals()) == "fine"
    rounds.round_at -= TIMEOUT_S + 1.0
    assert state_of(vitals.vitals()) == "stuck"


def test_a_rank_that_was_told_to_stop_is_stopping() -> None:
    vitals = RankVitals(TIMEOUT_S, lambda: True)
    vitals.rounds = Rounds()
    assert state_of(vitals.vitals()) == "stopping"


async def test_the_journal_tells_its_place_and_its_lag() -> None:
    world = MemoryWorld()
    journal = LogJournal(STAGE, world.transport(), DEAD_LETTERS, FAST)
    vitals = journal.vitals("working", time.monotonic(), TIMEOUT_S)
    assert (vitals.is_member, vitals.lag) == (False, None)
    assert state_of(vitals) == "waiting"
    await journal.open()
    await journal.seek({})
    await write(world, [make_request(f"g{i}") for i in range(3)])
    vitals = journal.vitals("working", time.monotonic(), TIMEOUT_S)
    assert (vitals.is_member, vitals.num_partitions) == (True, 4)
    assert vitals.lag is not None
    assert vitals.lag >= 3
    while (await journal.poll(0.05)) or journal.vitals("working", None, TIMEOUT_S).lag:
        await asyncio.sleep(0)
    assert state_of(journal.vitals("working", time.monotonic(), TIMEOUT_S)) == "fine"
    await journal.close()


def test_a_rank_tells_from_its_background_loop(tmp_path: Path) -> None:
    background, vitals = Background("log"), RankVitals(TIMEOUT_S)
    vitals.rounds = Rounds()
    with reporting("t", "learner", tmp_path) as reporter:
        vitals.follow(reporter, background, None)
        deadline = time.monotonic() + 10.0
        while not any(file.vitals for file in read_files(tmp_path)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    background.close()
