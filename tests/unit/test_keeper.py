"""A kept process is started again when it dies and ends for good when it should; with real, tiny processes."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from gagar.processes.identity import identity
from gagar.processes.supervised import Keeper, Patience, ProcessSpec

QUICK = Patience(first_backoff_s=0.001, max_backoff_s=0.004, max_early_deaths=5, stop_s=5.0)
COUNT = (
    "import pathlib, sys; p = pathlib.Path('lives'); n = len(p.read_text()) if p.exists() else 0; p.write_text('x' * (n + 1))"
)


def make_keeper(
    tmp_path: Path, script: str, *, has_end: bool = True, patience: Patience = QUICK, is_outage: bool = False
) -> Keeper:
    prefix = f"import os; os.chdir({str(tmp_path)!r})\n"
    spec = ProcessSpec(name="probe", command=(sys.executable, "-I", "-c", prefix + script), has_end=has_end)

    async def was_outage(since: float) -> bool:
        assert since <= time.monotonic()
        return is_outage

    return Keeper(spec, tmp_path, tmp_path / "probe.log", patience, was_outage)


def lives(tmp_path: Path) -> int:
    return len((tmp_path / "lives").read_text())


async def until_written(path: Path, text: str) -> str:
    """The file's content once it holds `text`."""
    async with asyncio.timeout(10):
        while not path.exists() or text not in path.read_text():
            await asyncio.sleep(0.01)
    return path.read_text()


async def test_a_process_that_dies_is_started_again_until_its_planned_end(tmp_path: Path) -> None:
    keeper = make_keeper(tmp_path, f"{COUNT}\nprint('life', n)\nsys.exit(0 if n == 2 else 7)")
    assert await keeper.keep() == 0
    assert lives(tmp_path) == 3
    assert (keeper.state.restarts, keeper.state.exit_code, keeper.state.pid) == (2, 0, None)
    assert keeper.log.read_text() == "life 0\nlife 1\nlife 2\n"


async def test_wrong_configuration_in_the_first_life_is_final(tmp_path: Path) -> None:
    keeper = make_keeper(tmp_path, f"{COUNT}\nsys.exit(2)")
    assert await keeper.keep() == 2
    assert lives(tmp_path) == 1


async def test_exit_code_2_while_kafka_is_down_is_an_outage_and_tried_again(tmp_path: Path) -> None:
    keeper = make_keeper(tmp_path, f"{COUNT}\nsys.exit([2, 0][n])", is_outage=True)
    assert await keeper.keep() == 0
    assert lives(tmp_path) == 2


async def test_exit_code_2_later_is_an_outage_and_tried_again(tmp_path: Path) -> None:
    keeper = make_keeper(tmp_path, f"{COUNT}\nsys.exit([1, 2, 0][n])")
    assert await keeper.keep() == 0
    assert lives(tmp_path) == 3


async def test_a_process_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    keeper = make_keeper(tmp_path, f"{COUNT}\nsys.exit(1)")
    assert await keeper.keep() == 1
    assert lives(tmp_path) == QUICK.max_early_deaths + 1


async def test_a_process_without_a_planned_end_is_started_again_after_exit_0(tmp_path: Path) -> None:
    keeper = make_keeper(tmp_path, f"{COUNT}\nsys.exit(0)", has_end=False)
    assert await keeper.keep() == 1
    assert lives(tmp_path) == QUICK.max_early_deaths + 1


async def test_a_process_that_lived_a_while_starts_again_at_the_first_backoff(tmp_path: Path) -> None:
    settled = Patience(first_backoff_s=0.001, settled_s=0.0, max_early_deaths=1)
    keeper = make_keeper(tmp_path, f"{COUNT}\nsys.exit(0 if n == 4 else 1)", patience=settled)
    assert await keeper.keep() == 0
    assert lives(tmp_path) == 5


@pytest.mark.parametrize(("early_deaths", "pause"), [(0, 0.5), (1, 0.5), (2, 1.0), (3, 2.0), (6, 15.0), (500, 15.0)])
def test_the_backoff_grows_and_is_bounded(early_deaths: int, pause: float) -> None:
    assert Patience().backoff_s(early_deaths) == pause


async def test_a_killed_process_leaves_no_orphans(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "for own in (False, True):\n"
        "    child = subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(60)'], start_new_session=own)\n"
        "    print(child.pid, flush=True)\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    keeper = make_keeper(tmp_path, script, patience=Patience(first_backoff_s=60.0))
    kept = asyncio.create_task(keeper.keep())
    children = [int(line) for line in (await until_written(keeper.log, "ready")).split()[:2]]
    assert all(identity(child) for child in children)
    pid = keeper.state.pid
    assert pid is not None
    os.kill(pid, 9)
    async with asyncio.timeout(10):
        while any(identity(child) for child in children):
            await asyncio.sleep(0.01)
    assert keeper.state.exit_code == -9
    keeper.stop()
    assert await kept == 0


async def test_stop_lets_a_process_end_in_good_order(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: (print('bye', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    keeper = make_keeper(tmp_path, script, has_end=False)
    kept = asyncio.create_task(keeper.keep())
    await until_written(keeper.log, "ready")
    keeper.stop()
    assert await kept == 0
    assert keeper.log.read_text() == "ready\nbye\n"
    assert keeper.state.restarts == 0


async def test_children_share_the_machine_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import os; print(os.environ['OMP_NUM_THREADS'])"
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    keeper = make_keeper(tmp_path, script)
    await keeper.keep()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    await make_keeper(tmp_path, script).keep()
    assert keeper.log.read_text() == "1\n2\n"
