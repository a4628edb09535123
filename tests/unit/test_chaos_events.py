"""Each event of the chaos suite tells whether it really happened."""

import asyncio
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.broker.cluster import node_directories
from tests.chaos import cluster_events, events
from tests.chaos.events import Arena
from tests.chaos.restarts import Watched
from tests.chaos.running import Log
from tests.chaos.slots import Exit
from tests.chaos.tampering import Markers
from tests.unit.test_chaos_schedule import make_plan


class FakeProcess:
    """Ends at SIGKILL, unless it has ended before."""

    pid = 1

    def __init__(self, returncode: int | None = None, dies_of: int = -signal.SIGKILL) -> None:
        self.returncode = returncode
        self.signals: list[int] = []
        self._dies_of = dies_of

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.returncode = self._dies_of

    async def wait(self) -> int | None:
        return self.returncode


class FakeSlot:
    """Starts nobody."""

    def __init__(self, alive: Sequence[FakeProcess]) -> None:
        self.alive = list(alive)
        self.target = 1
        self.is_finished = False

    async def fill(self) -> None: ...

    async def shrink(self, processes: Sequence[Any]) -> None: ...

    async def stop(self, process: FakeProcess) -> bool:
        return process.returncode is None


class Hurried(random.Random):
    """Waits for nothing."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FROZEN_S", "SETTLE_S", "POLL_S", "MARKER_TIMEOUT_S", "OWNED_TIMEOUT_S"):
        monkeypatch.setattr(events, name, 0.0)


def make_arena(directory: Path, *alive: FakeProcess) -> Arena:
    stages: Any = {"verifier": FakeSlot(alive)}
    arena = Arena(make_plan(directory), directory, stages, Log())
    arena.chance = Hurried(1)
    return arena


@pytest.mark.parametrize("event", [events.kill, events.terminate, events.scale, events.kill_before_broker])
async def test_without_a_process_nothing_happens(tmp_path: Path, event: Any) -> None:
    assert not await event(make_arena(tmp_path), "verifier")


async def test_a_kill_has_happened_if_the_process_died_of_it(tmp_path: Path) -> None:
    assert await events.kill(make_arena(tmp_path, FakeProcess()), "verifier")
    assert not await events.kill(make_arena(tmp_path, FakeProcess(dies_of=1)), "verifier")
    ended = FakeProcess(returncode=0)
    assert not await events.kill(make_arena(tmp_path, ended), "verifier")
    assert ended.signals == []


async def test_a_freeze_has_happened_if_who_was_stopped_wakes_again(tmp_path: Path) -> None:
    sleeper = FakeProcess()
    assert await events.freeze(make_arena(tmp_path, sleeper), "verifier")
    assert sleeper.signals == [signal.SIGSTOP, signal.SIGCONT]
    assert not await events.freeze(make_arena(tmp_path, FakeProcess(returncode=1)), "verifier")


async def test_a_scaling_that_nobody_could_watch_has_not_happened(tmp_path: Path) -> None:
    arena = make_arena(tmp_path, FakeProcess())
    assert not await events.scale(arena, "verifier")
    assert not arena.markers.is_lingering("verifier")


@pytest.mark.parametrize("num_kept", [0, 3])
async def test_a_scaling_has_happened_if_handlers_were_in_work(
    tmp_path: Path, num_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def come_to_own(arena: Arena, stage: str, processes: Any, num_partitions: int) -> bool:
        return True

    monkeypatch.setattr(events, "_come_to_own", come_to_own)
    monkeypatch.setattr(events, "watched", lambda *_: Watched(num_kept=num_kept, restarted=["a"]))
    arena = make_arena(tmp_path, FakeProcess())
    assert await events.scale(arena, "verifier") is (num_kept > 0)
    assert (arena.log.num_kept, arena.log.restarted) == (num_kept, ["a"]), "restarts are told in any case"


async def test_processes_that_are_added_are_not_stopped_before_each_owns_a_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = {pid: iter([[], [], [pid]]) for pid in (1, 2)}
    monkeypatch.setattr(events, "OWNED_TIMEOUT_S", 60.0)
    monkeypatch.setattr(events, "owned_by", lambda directory, stage, pid: next(owned[pid], [pid]))
    added: list[Any] = [SimpleNamespace(pid=1), SimpleNamespace(pid=2)]
    assert await events._come_to_own(make_arena(tmp_path), "verifier", added, 1)
    assert list(owned[2]) == [], "the second was asked until it owned one"
    monkeypatch.setattr(events, "OWNED_TIMEOUT_S", 0.01)
    assert not await events._come_to_own(make_arena(tmp_path), "verifier", added, 2)


@pytest.mark.parametrize("event", [events.hang, events.block])
async def test_a_marker_that_nobody_takes_in_time_is_taken_back(tmp_path: Path, event: Any) -> None:
    assert not await event(make_arena(tmp_path), "verifier")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["hang", "block"])
async def test_a_marker_that_a_handler_takes_has_happened(tmp_path: Path, name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MARKER_TIMEOUT_S", 60.0)
    event = asyncio.create_task(getattr(events, name)(make_arena(tmp_path), "verifier"))
    await asyncio.sleep(0)
    assert Markers(tmp_path).take(name, "verifier")
    assert await event


async def test_an_outage_has_happened_if_a_handler_met_it(tmp_path: Path) -> None:
    arena = make_arena(tmp_path)
    event = asyncio.create_task(events.outage(arena, "verifier"))
    await asyncio.sleep(0)
    assert Markers(tmp_path).meets_outage
    assert await event
    assert not Markers(tmp_path).meets_outage
    assert not await events.outage(arena, "verifier"), "the word that was left of the last one is no proof of the next"


@pytest.mark.parametrize("name", ["kill_before_broker", "freeze_before_broker"])
async def test_the_broker_goes_right_after_a_stage_has_been_hit(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, seen = FakeProcess(), []

    async def goes(arena: Arena, stage: str) -> bool:
        seen.append(list(process.signals))
        return True

    monkeypatch.setattr(events, "kill_broker", goes)
    monkeypatch.setattr(events, "restart_broker", goes)
    assert await getattr(events, name)(make_arena(tmp_path, process), "verifier")
    assert seen == [[signal.SIGKILL if name.startswith("kill") else signal.SIGSTOP]], "and before it is awake again"


@pytest.mark.parametrize(("pid", "happened"), [(7, False), (8, True)])
async def test_the_broker_went_if_another_process_came_back(
    tmp_path: Path, pid: int, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "running_state", lambda directory: SimpleNamespace(pid=7, address="a"))
    monkeypatch.setattr(events, "stop_broker", lambda directory: True)
    monkeypatch.setattr(events, "start_broker", lambda directory, environment: SimpleNamespace(pid=pid, address="a"))
    assert await events.restart_broker(make_arena(tmp_path), "broker") is happened


async def test_any_one_of_three_brokers_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[Path] = []
    monkeypatch.setattr(events, "running_state", lambda directory: SimpleNamespace(pid=7, address="a"))
    monkeypatch.setattr(events, "stop_broker", gone.append)
    monkeypatch.setattr(events, "start_node", lambda directory, environment: SimpleNamespace(pid=8, address="a"))
    arena = Arena(replace(make_plan(tmp_path), num_brokers=3), tmp_path, {}, Log())
    arena.chance = Hurried(1)
    for _ in range(20):
        assert await events.restart_broker(arena, "broker")
    assert set(gone) == set(node_directories(tmp_path))


async def test_whoever_was_sent_away_comes_back_also_if_the_event_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(cluster_events, "send_away", lambda two, way: seen.append(two))
    monkeypatch.setattr(cluster_events, "bring_back", lambda two, environment: seen.append(two))
    event = asyncio.create_task(
        cluster_events.lose_quorum(Arena(replace(make_plan(tmp_path), num_brokers=3), tmp_path, {}, Log()), "")
    )
    while not seen:
        await asyncio.sleep(0)
    event.cancel()
    with pytest.raises(asyncio.CancelledError):
        await event
    assert len(set(seen[0])) == 2
    assert seen == [seen[0], seen[0]]


@pytest.mark.parametrize(
    ("code", "told", "was_told", "is_expected"),
    [
        (0, "bye", False, True),
        (-9, "", False, True),
        (-15, "", True, True),
        (-15, "at work", True, False),
        (-15, "", False, False),
    ],
)
def test_only_a_process_without_a_word_may_end_by_the_signal_that_stops_it(
    code: int, told: str, was_told: bool, is_expected: bool
) -> None:
    assert Exit(stage="grader", code=code, told=told, was_told=was_told).is_expected is is_expected
