"""The supervisor keeps all processes of a run, ends as one of them says, and leaves none behind."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from gagar.broker.watch import ClusterWatch
from gagar.cli.up.stage_processes import stage_processes
from gagar.config import DRAIN_S
from gagar.errors import ConfigError, UnavailableError
from gagar.processes.identity import identity
from gagar.processes.orphan_cleanup import members
from gagar.processes.supervised import ProcessSpec, RestartPolicy
from gagar.processes.supervisor import Supervisor
from tests.runs import make_run
from topology.stages import STAGES

pytestmark = pytest.mark.slow

QUICK = RestartPolicy(first_backoff_s=0.001, max_early_deaths=2, stop_s=0.3)
FOREVER = "import time; print('up', flush=True); time.sleep(60)"
SLOW = """import signal, time
asked = []
signal.signal(signal.SIGTERM, lambda *signals: asked.append(time.monotonic()))
print('up', flush=True)
while len(asked) < 2 and (not asked or time.monotonic() < asked[0] + work_s): time.sleep(0.01)
print('asked', len(asked), flush=True)"""
RUN = make_run(Path("/nowhere"), num_partitions=4)
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def spec(name: str, script: str, *, is_goal: bool = False, drain_s: float = 0.0) -> ProcessSpec:
    command = (sys.executable, "-I", "-c", script)
    return ProcessSpec(name=name, command=command, has_end=is_goal, is_goal=is_goal, drain_s=drain_s)


class Lines:
    """Collects lines, and can wait for one."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.seen.append((name, line))

    async def until(self, *wanted: tuple[str, str]) -> None:
        async with asyncio.timeout(20):
            while not set(wanted) <= set(self.seen):
                await asyncio.sleep(0.01)


def make_supervisor(tmp_path: Path, *specs: ProcessSpec, lines: Lines | None = None) -> Supervisor:
    watch = ClusterWatch(lambda: True)
    return Supervisor(specs, tmp_path / "run", watch, on_line=lines, restart_policy=QUICK)


async def test_the_run_ends_when_its_sources_have_and_the_rest_is_stopped(tmp_path: Path) -> None:
    supervisor = make_supervisor(tmp_path, spec("sampler", "print('done')", is_goal=True), spec("worker", FOREVER))
    await supervisor.hold()
    await supervisor.start()
    assert await supervisor.wait() == 0
    await supervisor.stop()
    assert [(state.name, state.pid) for state in supervisor.states()] == [("sampler", None), ("worker", None)]
    assert members(tmp_path / "run") == []


async def test_a_stage_that_refuses_its_configuration_ends_everything(tmp_path: Path) -> None:
    supervisor = make_supervisor(tmp_path, spec("worker", FOREVER), spec("broken", "import sys; sys.exit(2)"))
    await supervisor.hold()
    await supervisor.start()
    assert await supervisor.wait() == 2
    await supervisor.stop()
    assert members(tmp_path / "run") == []


async def test_a_stage_that_is_given_up_ends_the_run_with_1(tmp_path: Path) -> None:
    supervisor = make_supervisor(tmp_path, spec("worker", FOREVER), spec("broken", "1 / 0"))
    await supervisor.hold()
    await supervisor.start()
    assert await supervisor.wait() == 1
    await supervisor.stop()
    log = (tmp_path / "run" / "logs" / "broken.log").read_text()
    assert log.count("ZeroDivisionError") == QUICK.max_early_deaths + 1


async def test_a_process_that_ignores_sigterm_is_killed_in_bounded_time(tmp_path: Path) -> None:
    lines = Lines()
    supervisor = make_supervisor(tmp_path, spec("stubborn", STUBBORN), lines=lines)
    await supervisor.hold()
    await supervisor.start()
    await lines.until(("stubborn", "up"))
    started = time.monotonic()
    await supervisor.stop()
    assert time.monotonic() - started < 10
    assert supervisor.states()[0].exit_code == -9


async def test_lines_of_all_logs_are_told_up_to_the_last_one(tmp_path: Path) -> None:
    lines = Lines()
    supervisor = make_supervisor(
        tmp_path, spec("a", "print('one'); print('no end', end='')", is_goal=True), spec("b", FOREVER), lines=lines
    )
    await supervisor.hold()
    await supervisor.start()
    await lines.until(("b", "up"), ("a", "one"))
    await supervisor.wait()
    await supervisor.stop()
    assert ("a", "no end") in lines.seen


async def test_two_supervisors_of_one_run_are_refused(tmp_path: Path) -> None:
    lines = Lines()
    first = make_supervisor(tmp_path, spec("a", FOREVER), lines=lines)
    second = make_supervisor(tmp_path, spec("a", FOREVER))
    await first.hold()
    await first.start()
    await lines.until(("a", "up"))
    with pytest.raises(UnavailableError, match=r"run: expected to be free, got in use by another gagar \(pid \d+\); stop that"):
        await second.hold()
    await second.stop()
    assert first.states()[0].pid is not None
    await first.stop()


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_run_whose_directory_was_moved_away_ends_and_says_why(tmp_path: Path, is_replaced: bool) -> None:
    lines = Lines()
    supervisor = make_supervisor(tmp_path, spec("a", FOREVER), lines=lines)
    await supervisor.hold()
    await supervisor.start()
    await lines.until(("a", "up"))
    (tmp_path / "run").rename(tmp_path / "moved")
    if is_replaced:
        (tmp_path / "run").mkdir()
    got = "another one" if is_replaced else "none"
    message = rf"run: expected the directory that this run began with, got {got} \(moved or deleted\); put it back and start"
    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError, match=message):
            await supervisor.wait()
    await supervisor.stop()
    assert members(tmp_path / "run") == []
    assert (tmp_path / "run").exists() == is_replaced


async def test_a_process_that_dies_in_a_directory_that_is_gone_makes_no_new_one(tmp_path: Path) -> None:
    script = f"import os; os.rename({str(tmp_path / 'run')!r}, {str(tmp_path / 'moved')!r})"
    supervisor = make_supervisor(tmp_path, spec("a", script))
    await supervisor.hold()
    await supervisor.start()
    with pytest.raises(UnavailableError, match="expected the directory that this run began with, got none"):
        await supervisor.wait()
    await supervisor.stop()
    assert not (tmp_path / "run").exists()


async def test_the_log_of_the_run_before_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    for word in ("first", "second"):
        supervisor = make_supervisor(tmp_path, spec("a", f"print('{word}')", is_goal=True))
        await supervisor.hold()
        await supervisor.start()
        await supervisor.wait()
        await supervisor.stop()
    logs = tmp_path / "run" / "logs"
    assert ((logs / "a.log").read_text(), (logs / "a.log.1").read_text()) == ("second\n", "first\n")


async def test_a_stop_leaves_long_work_the_time_that_it_may_take_and_no_more_when_it_is_hurried(tmp_path: Path) -> None:
    lines = Lines()
    for work_s, is_hurried, asked in ((1.0, False, 1), (600.0, True, 2)):
        supervisor = make_supervisor(tmp_path, spec("a", f"work_s = {work_s}\n{SLOW}", drain_s=work_s * 20), lines=lines)
        await supervisor.hold()
        await supervisor.start()
        await lines.until(("a", "up"))
        lines.seen.clear()
        stopping = asyncio.create_task(supervisor.stop())
        await asyncio.sleep(QUICK.stop_s * 2)
        assert not stopping.done()
        if is_hurried:
            supervisor.stop_at_once()
        async with asyncio.timeout(15):
            await stopping
        assert lines.seen == [("a", f"asked {asked}")]
        lines.seen.clear()


async def test_stop_without_a_start_is_quiet(tmp_path: Path) -> None:
    await make_supervisor(tmp_path, spec("a", FOREVER)).stop()


PARENT = """
import asyncio, sys
from pathlib import Path
from gagar.broker.watch import ClusterWatch
from gagar.processes.supervised import ProcessSpec
from gagar.processes.supervisor import Supervisor

async def main(root):
    script = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(60)'], " \\
        "start_new_session=True); print('up', flush=True); time.sleep(60)"
    spec = ProcessSpec(name="a", command=(sys.executable, "-I", "-c", script))
    watch = ClusterWatch(lambda: False)
    supervisor = Supervisor([spec], root / "run", watch, on_line=lambda name, line: print(line, flush=True))
    await supervisor.hold()
    await supervisor.start()
    await asyncio.sleep(60)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_killed_supervisor_takes_its_processes_and_their_children_along(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, cwd=root) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        left = members(tmp_path / "run")
        assert len(left) == 2
        parent.kill()
    deadline = time.monotonic() + 15
    while any(identity(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in left if identity(pid)] == []


def test_every_stage_is_one_process_unless_scaled() -> None:
    specs = stage_processes(("--run", "x.toml"), {"verifier": 2, "grader": 0}, RUN)
    names = [spec.name for spec in specs]
    assert names == [
        "sampler", "rollout-worker", "verifier.1", "verifier.2", "gatherer", "advantage-publisher", "learner"
    ]  # fmt: skip
    assert specs[2].command == (sys.executable, "-P", "-m", "gagar.cli.main", "run", "verifier", "--run", "x.toml")
    assert [spec.name for spec in specs if spec.is_goal] == ["sampler"]
    assert [spec.name for spec in specs if spec.has_end] == ["sampler", "learner"]
    assert {spec.drain_s for spec in specs} == {DRAIN_S}


def test_a_stage_of_long_work_has_the_time_that_its_table_gives() -> None:
    run = replace(RUN, tables={**RUN.tables, "rollout_worker": {"drain_s": 3600}})
    specs = stage_processes((), {"rollout-worker": 2}, run)
    assert [spec.name for spec in specs if spec.drain_s == 3600] == ["rollout-worker.1", "rollout-worker.2"]


def test_a_scale_of_an_unknown_stage_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--scale verifyer: expected one of .*verifier.*, got verifyer; did you mean"):
        stage_processes((), {"verifyer": 2}, RUN)
    assert len(stage_processes((), {}, RUN)) == len(STAGES)


@pytest.mark.parametrize("stage", ["sampler", "learner"])
def test_a_stage_that_is_one_process_cannot_be_scaled(stage: str) -> None:
    with pytest.raises(ConfigError, match=rf"--scale {stage}=2: expected 0 or 1, got 2; a second one would fence the first"):
        stage_processes((), {stage: 2}, RUN)
    assert stage not in [spec.name for spec in stage_processes((), {stage: 0}, RUN)]


def test_more_processes_than_partitions_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--scale verifier=5: expected at most kafka.num_partitions, 4, got 5"):
        stage_processes((), {"verifier": 5}, RUN)
    assert len(stage_processes((), {"verifier": 4}, RUN)) == len(STAGES) + 3
