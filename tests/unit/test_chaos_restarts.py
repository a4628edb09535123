"""Restarts that scaling is to blame for, read from traces."""

from pathlib import Path

import pytest

from gagar.records import LogRef
from tests.chaos import restarts, tampering
from tests.chaos.tampering import Entry, path_of


def traced(directory: Path, pid: int, *entries: tuple[float, str, list[int]]) -> None:
    import msgspec

    lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
    path_of(directory, "verifier", pid).write_bytes(lines + b'[1.0,"sta')  # a line that a SIGKILL has cut short


def test_a_delivery_that_is_begun_again_on_a_partition_that_stayed_is_a_restart(tmp_path: Path) -> None:
    traced(
        tmp_path, 1, (0, "own", [0, 1]), (5, "start", [0, 7]), (11, "own", [0]), (12, "start", [0, 7]), (13, "start", [0, 8])
    )
    found = restarts.watched(tmp_path, "verifier", 1, {2}, began=10, ended=20)
    assert (found.num_kept, len(found.restarted)) == (1, 1)
    assert "partition 0 offset 7: begun 2 times" in found.restarted[0]


def test_handlers_count_as_kept_that_were_in_work_at_a_division_on_a_partition_that_stayed(tmp_path: Path) -> None:
    traced(
        tmp_path,
        1,
        (0, "own", [0, 1]),
        (4, "start", [0, 6]),
        (5, "start", [0, 7]),
        (5, "start", [1, 7]),
        (6, "end", [0, 6]),
        (11, "own", [0]),
        (12, "end", [0, 7]),
        (13, "start", [0, 8]),
        (14, "own", [0]),
        (14.5, "start", [0, 9]),
        (21, "own", [0]),
    )
    found = restarts.watched(tmp_path, "verifier", 1, set(), began=10, ended=20)
    assert found.num_kept == 2, "offsets 7 and 8: 6 had ended, partition 1 went, 9 met a division after the scaling only"


def test_without_a_division_nothing_was_kept(tmp_path: Path) -> None:
    traced(tmp_path, 1, (0, "own", [0]), (5, "start", [0, 7]), (12, "start", [0, 8]))
    assert restarts.watched(tmp_path, "verifier", 1, set(), began=10, ended=20).num_kept == 0


@pytest.mark.parametrize(
    "entries",
    [
        [(0, "own", [0, 1]), (5, "start", [1, 7]), (11, "own", [0]), (15, "own", [0, 1]), (16, "start", [1, 7])],
        [(0, "own", [0, 1]), (5, "start", [0, 7]), (6, "start", [0, 7]), (11, "own", [0, 1])],
        [(5, "start", [0, 7]), (11, "own", [0, 1]), (16, "start", [0, 7])],
    ],
    ids=["the partition went and came back", "it was before the scaling", "nothing was owned before"],
)
def test_what_scaling_did_not_do_is_no_restart(tmp_path: Path, entries: list[tuple[float, str, list[int]]]) -> None:
    traced(tmp_path, 1, *entries)
    assert restarts.watched(tmp_path, "verifier", 1, set(), began=10, ended=20).restarted == []


def test_a_partition_that_another_process_began_on_was_not_kept(tmp_path: Path) -> None:
    traced(tmp_path, 1, (0, "own", [0]), (5, "start", [0, 7]), (16, "start", [0, 7]))
    traced(tmp_path, 2, (12, "start", [0, 7]))
    assert restarts.watched(tmp_path, "verifier", 1, {2}, began=10, ended=20).restarted == []
    assert len(restarts.watched(tmp_path, "verifier", 1, {3}, began=10, ended=20).restarted) == 1


async def test_another_try_in_the_same_task_is_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr("os.getpid", lambda: 4)
    trace = tampering.Trace(tmp_path, "verifier")
    trace.owns(frozenset({1, 0}))

    async def handle() -> None:
        for _ in range(3):
            trace.started(LogRef(topic="trajectories", partition=1, offset=9))
        trace.ended(LogRef(topic="trajectories", partition=1, offset=9), is_done=False)

    await asyncio.gather(asyncio.create_task(handle()), asyncio.create_task(handle()))
    entries = list(tampering.read_trace(tmp_path, "verifier", 4))
    kinds = [entry.kind for entry in entries]
    assert (kinds[0], sorted(kinds[1:])) == ("own", ["end", "end", "start", "start"])
    assert [entry.numbers for entry in entries] == [[0, 1], *[[1, 9]] * 4]
    assert restarts.owned_by(tmp_path, "verifier", 4) == [0, 1]
    assert isinstance(entries[0], Entry)


def test_what_was_answered_and_begun_by_another_process_was_done_again(tmp_path: Path) -> None:
    traced(tmp_path, 1, (0, "own", [0]), (1, "start", [0, 7]), (2, "done", [0, 7]), (3, "start", [0, 8]), (4, "end", [0, 8]))
    traced(tmp_path, 2, (0.5, "start", [0, 7]), (5, "own", [0]), (6, "start", [0, 8]), (7, "done", [0, 8]))
    assert restarts.waste(tmp_path).num_reran == 0, "7 was begun before it had been answered, 8 had only been given up"
    traced(tmp_path, 3, (8, "own", [0]), (9, "start", [0, 7]), (9, "start", [0, 8]), (10, "start", [0, 7]))
    assert restarts.waste(tmp_path).num_reran == 2


def test_what_begins_on_a_partition_that_has_gone_is_told(tmp_path: Path) -> None:
    traced(tmp_path, 1, (0, "own", [0, 1]), (1, "start", [1, 7]), (2, "own", [0]), (3, "start", [0, 8]), (4, "start", [1, 9]))
    assert restarts.waste(tmp_path).begun_after_loss == ["verifier pid 1 partition 1 offset 9"]
