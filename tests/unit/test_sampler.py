"""The sampler stage over admission: what the requests hold, and that a restart changes nothing."""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest

from consumers.gatherer import Config as GathererConfig
from gagar.config import TrainingTable, convert
from gagar.errors import ConfigError
from gagar.records import RolloutRequest
from producers.sampler import Config, Sampler
from tests import asking
from tests.builders import make_outcome, make_version
from tests.contract.world import MemoryWorld, Process
from tests.dying import Mortal, simulated
from topology.stages import SAMPLER

TRAINING = TrainingTable(
    group_size=4,
    groups_per_step=2,
    max_staleness=1,
    evaluation_group_size=3,
    rollout_deadline_s=60.0,
    agent_timeout_s=20.0,
    evaluate_every=2,
)
TRAIN = [f"train-{i}" for i in range(5)]
HELDOUT = ["held-0", "held-1"]


def make_sampler(cursor: bytes = b"", seed: int = 7) -> Sampler:
    sampler = Sampler(TRAINING, seed, TRAIN, HELDOUT)
    sampler.restore(cursor)
    return sampler


def drain(sampler: Sampler) -> tuple[list[list[RolloutRequest]], bytes]:
    groups, cursor = [], b""
    while (unit := sampler.next_unit()) is not None:
        requests, cursor = unit
        groups.append(list(requests))
        assert len(groups) < 100
    return groups, cursor


def started() -> Sampler:
    sampler = make_sampler()
    sampler.observe(make_version(0))
    return sampler


def test_a_unit_is_one_whole_group() -> None:
    groups, _ = drain(started())
    assert [len(group) for group in groups] == [3, 3, 4, 4, 4, 4]
    for group in groups:
        assert [request.sample_index for request in group] == list(range(group[0].group_size))
        assert len({request.group_id for request in group}) == 1
        assert len({request.task_id for request in group}) == 1


def test_the_evaluation_takes_each_heldout_task_once() -> None:
    groups, _ = drain(started())
    first, second = groups[0][0], groups[1][0]
    assert [r.task_id for r in (first, second)] == HELDOUT
    assert {(r.purpose, r.group_size, r.step) for r in (first, second)} == {("evaluation", 3, 0)}


def test_a_later_round_is_named_by_the_step_that_it_began_at() -> None:
    sampler = started()
    drain(sampler)
    sampler.observe(make_version(2))
    first = sampler.next_unit()
    sampler.observe(make_version(3))
    second = sampler.next_unit()
    assert first is not None
    assert second is not None
    assert [unit[0][0].group_id for unit in (first, second)] == ["e-000002-0000", "e-000002-0001"]
    assert [unit[0][0].step for unit in (first, second)] == [2, 2]


def test_training_groups_take_train_tasks_and_carry_the_newest_step() -> None:
    sampler = started()
    drain(sampler)
    sampler.observe(make_version(1))
    sampler.observe(make_outcome("t-000000"))
    [[request, *_]] = drain(sampler)[0]
    assert (request.group_id, request.purpose, request.step) == ("t-000004", "training", 1)
    assert request.task_id in TRAIN


def test_requests_carry_a_deadline_and_seeds_of_their_own() -> None:
    requests = [request for group in drain(started())[0] for request in group]
    assert {r.deadline_s for r in requests} == {60.0}
    assert {r.agent_timeout_s for r in requests} == {20.0}
    assert len({r.seed for r in requests}) == len(requests)


def test_another_seed_gives_other_seeds_and_another_order() -> None:
    def trained(seed: int) -> list[RolloutRequest]:
        sampler = make_sampler(seed=seed)
        sampler.observe(make_version(0))
        return [group[0] for group in drain(sampler)[0][2:]]

    assert trained(7) == trained(7)
    assert [r.task_id for r in trained(7)] != [r.task_id for r in trained(8)]
    assert not {r.seed for r in trained(7)} & {r.seed for r in trained(8)}


def test_a_restarted_sampler_goes_on_where_the_cursor_stands() -> None:
    whole, _ = drain(started())
    for num_before in range(len(whole)):
        first = started()
        units = [first.next_unit() for _ in range(num_before)]
        cursor = units[-1][1] if units and units[-1] else b""
        second = make_sampler(cursor)
        second.observe(make_version(0))
        assert drain(second)[0] == whole[num_before:]


def test_a_restarted_sampler_rebuilds_what_has_ended_from_the_table() -> None:
    first = started()
    _, cursor = drain(first)
    second = make_sampler(cursor)
    second.observe(make_outcome("t-000001", "dropped", reason="all_passed"))
    second.observe(make_version(0))
    [[request, *_]] = drain(second)[0]
    assert request.group_id == "t-000004"


def test_it_is_done_after_the_planned_end() -> None:
    sampler = started()
    groups, _ = drain(sampler)
    sampler.observe(make_version(TRAINING.num_steps, is_last=True))
    groups += drain(sampler)[0]
    for group in groups:
        assert not sampler.is_done
        kind = "dropped" if group[0].purpose == "training" else "evaluated"
        sampler.observe(make_outcome(group[0].group_id, kind, reason="ended" if kind == "dropped" else ""))
    assert sampler.is_done
    assert sampler.next_unit() is None


def test_unknown_keys_of_the_tables_are_refused() -> None:
    with pytest.raises(ConfigError, match="sampler"):
        convert("sampler", {"speed": 1}, Config)
    with pytest.raises(ConfigError, match=r"gatherer.grace_s: expected 0 or more, at most .* got -1"):
        convert("gatherer", {"grace_s": -1}, GathererConfig)


async def run_of(deaths: Sequence[int]) -> tuple[list[Any], list[int]]:
    """Everything that is asked for in a run whose sampler dies at these points, in one life after the other; and how many
    points each life had."""
    world, num_points = MemoryWorld(1), []
    log = asking.InstantLog(world.log)
    rest = asyncio.create_task(asking.Rest(log).run())
    for at in (*deaths, 0):
        process, mortal = Process(world, SAMPLER, asking.make_sampler()), Mortal(at)
        mortal.transport = process.transport  # type: ignore[assignment]
        async with asyncio.timeout(300.0):
            with mortal.lives(asyncio.get_running_loop()):
                running = asyncio.create_task(process.runtime.run(asyncio.Event()))
                while not mortal.is_dead and not running.done():
                    await asyncio.sleep(0.01)
            await mortal.buried()
        num_points.append(mortal.num_points)
        if running.done() and not running.cancelled():
            running.result()
            break
    await rest
    return asking.facts(await log.requested()), num_points


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # its caller was killed
@pytest.mark.slow
def test_a_sampler_that_dies_again_and_again_asks_as_one_that_never_did(caplog: pytest.LogCaptureFixture) -> None:
    """At points spread over the whole run, while outcomes and versions come and a learner goes back to a checkpoint."""
    caplog.set_level(logging.CRITICAL)
    with simulated() as runner:
        expected, [num_points] = runner.run(run_of([]))
        num_groups = len({group_id for group_id, *_ in expected})
        assert num_groups == 3 * len(asking.HELDOUT) + 2 * (asking.TRAINING.num_steps + asking.TRAINING.max_staleness)
        chance = random.Random(0)
        for first in range(1, num_points, max(1, num_points // 60)):
            deaths = [first, *(chance.randint(1, num_points // 3) for _ in range(3))]
            found, _ = runner.run(run_of(deaths))
            assert found == expected, f"died at points {deaths}"
