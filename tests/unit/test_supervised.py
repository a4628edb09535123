"""A supervised process is started again when it dies and ends for good when it should; with real, tiny processes."""

import asyncio
import errno
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from gagar.errors import MachineError
from gagar.processes.identity import identity
from gagar.processes.orphan_cleanup import members
from gagar.processes.storage import Storage
from gagar.processes.supervised import ProcessSpec, RestartPolicy, SupervisedProcess

pytestmark = pytest.mark.slow

QUICK = RestartPolicy(first_backoff_s=0.001, max_backoff_s=0.004, max_early_deaths=5, stop_s=5.0)
COUNT = (
    "import pathlib, sys; p = pathlib.Path('lives'); n = len(p.read_text()) if p.exists() else 0; p.write_text('x' * (n + 1))"
)


def make_process(
    tmp_path: Path, script: str, *, has_end: bool = True, restart_policy: RestartPolicy = QUICK, is_outage: bool = False
) -> SupervisedProcess:
    prefix = f"import os; os.chdir({str(tmp_path)!r})\n"
    spec = ProcessSpec(name="probe", command=(sys.executable, "-I", "-c", prefix + script), has_end=has_end)

    async def was_outage(since: float) -> bool:
        assert since <= time.monotonic()
        return is_outage

    return SupervisedProcess(spec, Storage(tmp_path), tmp_path, tmp_path / "probe.log", restart_policy, was_outage)


def lives(tmp_path: Path) -> int:
    return len((tmp_path / "lives").read_text())


async def until_written(path: Path, text: str) -> str:
    """The file's content once it holds `text`."""
    async with asyncio.timeout(10):
        while not path.exists() or text not in path.read_text():
            await asyncio.sleep(0.01)
    return path.read_text()


async def test_a_process_that_dies_is_started_again_until_its_planned_end(tmp_path: Path) -> None:
    process = make_process(tmp_path, f"{COUNT}\nprint('life', n)\nsys.exit(0 if n == 2 else 7)")
    assert await process.keep() == 0
    assert lives(tmp_path) == 3
    assert (process.state.restarts, process.state.exit_code, process.state.pid) == (2, 0, None)
    assert process.log.read_text() == "life 0\nlife 1\nlife 2\n"


async def test_wrong_configuration_in_the_first_life_is_final(tmp_path: Path) -> None:
    process = make_process(tmp_path, f"{COUNT}\nsys.exit(2)")
    assert await process.keep() == 2
    assert lives(tmp_path) == 1


async def test_exit_code_2_while_kafka_is_down_is_an_outage_and_tried_again(tmp_path: Path) -> None:
    process = make_process(tmp_path, f"{COUNT}\nsys.exit([2, 0][n])", is_outage=True)
    assert await process.keep() == 0
    assert lives(tmp_path) == 2


async def test_exit_code_2_later_is_an_outage_and_tried_again(tmp_path: Path) -> None:
    process = make_process(tmp_path, f"{COUNT}\nsys.exit([1, 2, 0][n])")
    assert await process.keep() == 0
    assert lives(tmp_path) == 3


async def test_a_machine_that_lacks_something_is_final_in_any_life(tmp_path: Path) -> None:
    process = make_process(tmp_path, f"{COUNT}\nsys.exit([1, 5][n])")
    assert await process.keep() == 5
    assert lives(tmp_path) == 2


async def test_something_that_is_missing_outside_is_asked_for_a_few_times(tmp_path: Path) -> None:
    process = make_process(tmp_path, f"{COUNT}\nsys.exit(4)")
    assert await process.keep() == 4
    assert lives(tmp_path) == QUICK.max_unavailable + 1


async def test_something_that_is_missing_while_kafka_is_down_is_an_outage(tmp_path: Path) -> None:
    process = make_process(tmp_path, f"{COUNT}\nsys.exit(0 if n == 5 else 4)", is_outage=True)
    assert await process.keep() == 0
    assert lives(tmp_path) == 6


async def test_why_a_process_is_started_again_is_told_as_it_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = make_process(tmp_path, f"{COUNT}\nif n == 0: raise OSError('the disk is on fire')")
    assert await process.keep() == 0
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.search(r"^stage died name=probe code=1 .* last=OSError: the disk is on fire log=.*probe\.log$", told)


async def test_a_full_disk_ends_a_process_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = make_process(tmp_path, f"{COUNT}\nsys.exit(1)")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="expected to take data, got no space left on device; make room and start"):
        await process.keep()
    assert lives(tmp_path) == 1


async def test_a_process_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    process = make_process(tmp_path, f"{COUNT}\nsys.exit(1)")
    assert await process.keep() == 1
    assert lives(tmp_path) == QUICK.max_early_deaths + 1


async def test_a_process_without_a_planned_end_is_started_again_after_exit_0(tmp_path: Path) -> None:
    process = make_process(tmp_path, f"{COUNT}\nsys.exit(0)", has_end=False)
    assert await process.keep() == 1
    assert lives(tmp_path) == QUICK.max_early_deaths + 1


async def test_a_process_that_lived_a_while_starts_again_at_the_first_backoff(tmp_path: Path) -> None:
    settled = RestartPolicy(first_backoff_s=0.001, settled_s=0.0, max_early_deaths=1)
    process = make_process(tmp_path, f"{COUNT}\nsys.exit(0 if n == 4 else 1)", restart_policy=settled)
    assert await process.keep() == 0
    assert lives(tmp_path) == 5


@pytest.mark.parametrize(("early_deaths", "pause"), [(0, 0.5), (1, 0.5), (2, 1.0), (3, 2.0), (6, 15.0), (500, 15.0)])
def test_the_backoff_grows_and_is_bounded(early_deaths: int, pause: float) -> None:
    assert RestartPolicy().backoff_s(early_deaths) == pause


async def test_a_killed_process_leaves_no_orphans(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "for own in (False, True):\n"
        "    child = subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(60)'], start_new_session=own)\n"
        "    print(child.pid, flush=True)\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    process = make_process(tmp_path, script, restart_policy=RestartPolicy(first_backoff_s=60.0))
    kept = asyncio.create_task(process.keep())
    children = [int(line) for line in (await until_written(process.log, "ready")).split()[:2]]
    assert all(identity(child) for child in children)
    pid = process.state.pid
    assert pid is not None
    os.kill(pid, 9)
    async with asyncio.timeout(10):
        while any(identity(child) for child in children):
            await asyncio.sleep(0.01)
    assert process.state.exit_code == -9
    process.stop()
    assert await kept == 0


async def test_stop_lets_a_process_end_in_good_order(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: (print('bye', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    process = make_process(tmp_path, script, has_end=False)
    kept = asyncio.create_task(process.keep())
    await until_written(process.log, "ready")
    process.stop()
    assert await kept == 0
    assert process.log.read_text() == "ready\nbye\n"
    assert process.state.restarts == 0


@pytest.mark.parametrize("num_turns", range(8))
async def test_a_stop_at_any_moment_of_a_start_ends_it_for_good(
    tmp_path: Path, num_turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Turns of the loop go by from the call to a process that runs, and to its first words."""
    process = make_process(tmp_path, f"{COUNT}\nimport time; time.sleep(600)", has_end=False)
    kept = asyncio.create_task(process.keep())
    for _ in range(num_turns):
        await asyncio.sleep(0)
    process.stop()
    async with asyncio.timeout(QUICK.stop_s):
        assert await kept == 0
    assert (process.state.pid, process.state.restarts, caplog.messages) == (None, 0, [])
    assert members(tmp_path) == []


@pytest.mark.parametrize("num_turns", range(8))
async def test_a_deaf_process_is_ended_by_force_at_any_moment_of_its_start(tmp_path: Path, num_turns: int) -> None:
    """It has been deaf from its birth: whoever started it was."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        process = make_process(tmp_path, "import time; time.sleep(600)", has_end=False)
        kept = asyncio.create_task(process.keep())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        process.stop()
        process.kill()
        async with asyncio.timeout(QUICK.stop_s):
            assert await kept == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert members(tmp_path) == []


async def test_a_stop_in_the_pause_before_a_restart_does_not_wait_for_it_and_starts_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = make_process(tmp_path, f"{COUNT}\nsys.exit(7)", restart_policy=RestartPolicy(first_backoff_s=600.0))
    kept = asyncio.create_task(process.keep())
    async with asyncio.timeout(10):
        while not caplog.messages:
            await asyncio.sleep(0.01)
    for _ in range(2):
        process.stop()
        async with asyncio.timeout(QUICK.stop_s):
            assert await kept == 0
        assert (lives(tmp_path), process.state.restarts) == (1, 0)


@pytest.mark.parametrize("code", [2, 4])
async def test_a_stop_while_it_is_asked_why_a_process_died_is_quiet(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster that does not answer is asked for seconds."""
    once = RestartPolicy(first_backoff_s=600.0, max_unavailable=0)
    process = make_process(tmp_path, f"{COUNT}\nsys.exit({code})", restart_policy=once)

    async def stopped_meanwhile(since: float) -> bool:
        process.stop()
        return False

    process._was_outage = stopped_meanwhile
    async with asyncio.timeout(10):
        assert await process.keep() == 0
    assert (lives(tmp_path), caplog.messages) == (1, [])


async def test_children_share_the_machine_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import os; print(os.environ['OMP_NUM_THREADS'])"
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    process = make_process(tmp_path, script)
    await process.keep()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    await make_process(tmp_path, script).keep()
    assert process.log.read_text() == "1\n2\n"
