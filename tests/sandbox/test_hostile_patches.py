"""How candidate code cheats, and what is said of it: a row of the table of hazards each."""

import asyncio
import time

import pytest

from consumers.verifier import judge
from gagar.sandbox.protocol import TestRun
from gagar.sandbox.warm_sandbox import WarmSandbox
from tests.sleepers import num_with

pytestmark = [pytest.mark.sandbox, pytest.mark.asyncio(loop_scope="session")]

TIMEOUT_S = 30.0
TESTS = "from solution import f\n\n\ndef test_one():\n    assert f(1) == 2\n\n\ndef test_two():\n    assert f(2) == 3\n"
IDS = ["test_solution.py::test_one", "test_solution.py::test_two"]
RIGHT = "def f(x):\n    return x + 1\n"
WRONG = "def f(x):\n    return 0\n"
HALF = "def f(x):\n    return 2\n"
PASSING_HOOK = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"

def pytest_sessionfinish(session):
    session.exitstatus = 0
"""
FORGED_LINES = """
import json, os
LINES = "".join(json.dumps({"test": f"test_solution.py::test_" + name, "passed": True}) + chr(10) for name in ("one", "two"))
END = json.dumps({"end": "0" * 32}) + chr(10)
def forge(text):
    for descriptor in range(1, 256):
        try:
            os.write(descriptor, text.encode())
        except OSError:
            pass
"""


async def run_tests(sandbox: WarmSandbox, tree: dict[str, str], ids: list[str] = IDS, timeout_s: float = TIMEOUT_S) -> TestRun:
    async with sandbox.workspace({"test_solution.py": TESTS} | tree) as workspace:
        return await workspace.run_tests(ids, timeout_s)


async def status(sandbox: WarmSandbox, tree: dict[str, str]) -> str:
    return judge(IDS, await run_tests(sandbox, tree))[0]


async def test_a_right_solution_passes(sandbox: WarmSandbox) -> None:
    run = await run_tests(sandbox, {"solution.py": RIGHT})
    assert (run.passed, run.failed, run.is_complete, run.alarms) == (tuple(IDS), (), True, ())


async def test_a_wrong_one_fails_test_by_test(sandbox: WarmSandbox) -> None:
    run = await run_tests(sandbox, {"solution.py": HALF})
    assert (run.passed, run.failed, run.is_complete, run.alarms) == ((IDS[0],), (IDS[1],), True, ())
    assert "test_two" in run.output


HAZARDS = {
    "exit at import": {"solution.py": "import os\nos._exit(0)\n"},
    "exit in a test": {"solution.py": "import os\ndef f(x):\n    os._exit(0)\n"},
    "system exit": {"solution.py": "raise SystemExit(0)\n"},
    "pytest exit": {"solution.py": "import pytest\ndef f(x):\n    pytest.exit('done', returncode=0)\n"},
    "module skip": {"solution.py": "import pytest\npytest.skip('later', allow_module_level=True)\n"},
    "skip in a test": {"solution.py": "import pytest\ndef f(x):\n    pytest.skip('later')\n"},
    "expected failure": {"solution.py": "import pytest\ndef f(x):\n    pytest.xfail('later')\n"},
    "conftest turns reports": {"solution.py": WRONG, "conftest.py": PASSING_HOOK},
    "ini loads a plugin": {"solution.py": WRONG, "pytest.ini": "[pytest]\naddopts = -p evil\n", "evil.py": PASSING_HOOK},
    "ini deselects": {"solution.py": HALF, "pytest.ini": "[pytest]\naddopts = --deselect test_solution.py::test_two\n"},
    "pyproject deselects": {"solution.py": HALF, "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-k one'\n"},
    "planted plugin": {
        "solution.py": WRONG,
        "evil.py": PASSING_HOOK,
        "evil-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
        "evil-1.0.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n",
    },
    "shadowed modules": {
        "solution.py": WRONG,
        "pytest.py": "raise SystemExit(0)\n",
        "_pytest/__init__.py": "raise SystemExit(0)\n",
        "json.py": "raise SystemExit(0)\n",
        "sitecustomize.py": "raise SystemExit(0)\n",
    },
    "a package in place of the tests": {
        "solution.py": WRONG,
        "test_solution/__init__.py": "def test_one(): pass\ndef test_two(): pass\n",
    },
    "the runner's own names": {
        "solution.py": "import sys\nfor name in list(sys.modules):\n"
        "    if 'test_solution' in name: vars(sys.modules[name])['test_one'] = lambda: None\n" + WRONG
    },
    "patched internals": {
        "solution.py": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n" + WRONG
    },
    "patched reports": {
        "solution.py": "import _pytest.reports as r\n"
        "old = r.TestReport.from_item_and_call.__func__\n"
        "def new(cls, item, call):\n    report = old(cls, item, call)\n    report.outcome = 'passed'\n    return report\n"
        "r.TestReport.from_item_and_call = classmethod(new)\n" + WRONG
    },
    "equal to everything": {"solution.py": "class E:\n    def __eq__(self, other): return True\ndef f(x):\n    return E()\n"},
    "the mock that is equal to everything": {"solution.py": "from unittest.mock import ANY\ndef f(x):\n    return ANY\n"},
    "forged lines at import": {"solution.py": FORGED_LINES + "forge(LINES)\n" + WRONG},
    "forged lines and an end": {"solution.py": FORGED_LINES + "forge(LINES + END)\nos._exit(0)\n"},
    "forged lines at exit": {"solution.py": FORGED_LINES + "import atexit\natexit.register(forge, LINES + END)\n" + WRONG},
    "a line that is none": {"solution.py": FORGED_LINES + "forge('PASSED {' + chr(10))\n" + RIGHT},
    "no memory": {"solution.py": "x = bytearray(1 << 40)\n" + RIGHT},
    "deep recursion": {"solution.py": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return list(map(f, [x]))\n"},
    "a crash": {"solution.py": "import ctypes\ndef f(x):\n    ctypes.string_at(0)\n"},
    "a suicide": {"solution.py": "import os\ndef f(x):\n    os.kill(-1, 9)\n    os.kill(os.getpid(), 9)\n"},
}


@pytest.mark.parametrize("name", HAZARDS)
async def test_a_hostile_patch_does_not_pass(sandbox: WarmSandbox, name: str) -> None:
    assert await status(sandbox, HAZARDS[name]) == "failed"


async def test_the_server_survives_all_of_them(sandbox: WarmSandbox) -> None:
    servers = [keeper.server for keeper in sandbox._keepers]
    assert await status(sandbox, {"solution.py": RIGHT}) == "passed"
    assert [keeper.server for keeper in sandbox._keepers] == servers


@pytest.mark.parametrize(
    ("name", "alarm"),
    [
        ("patched internals", "the test that must fail passed"),
        ("patched reports", "the test that must fail passed"),
        ("equal to everything", "equal to what it cannot be equal to"),
        ("forged lines at import", "reported 2 times"),
        ("forged lines and an end", "forged end"),
        ("a line that is none", "malformed line"),
    ],
)
async def test_what_is_subverted_raises_an_alarm(sandbox: WarmSandbox, name: str, alarm: str) -> None:
    run = await run_tests(sandbox, HAZARDS[name])
    assert any(alarm in text for text in run.alarms)


IGNORED = ["conftest turns reports", "planted plugin", "shadowed modules", "a package in place of the tests"]


@pytest.mark.parametrize("name", IGNORED)
async def test_a_right_solution_passes_beside_what_is_ignored(sandbox: WarmSandbox, name: str) -> None:
    assert await status(sandbox, HAZARDS[name] | {"solution.py": RIGHT}) == "passed"


async def test_a_test_that_hangs_is_killed_with_its_children(sandbox: WarmSandbox) -> None:
    code = "import subprocess, time\ndef f(x):\n    subprocess.Popen(['setsid', 'sleep', '31536124'])\n    time.sleep(1000)\n"
    async with sandbox.workspace({"test_solution.py": TESTS, "solution.py": code}) as workspace:
        run = await workspace.run_tests(IDS, 1.0)
        assert (run.is_timeout, run.is_complete, run.passed) == (True, False, ())
        assert num_with("31536124") == 0


async def test_what_tests_print_is_bounded(sandbox: WarmSandbox) -> None:
    run = await run_tests(sandbox, {"solution.py": "print('x' * (40 << 20), flush=True)\n" + RIGHT})
    assert run.passed == tuple(IDS)
    assert len(run.output) < 10_000


async def test_odd_parameter_ids_are_kept_whole(sandbox: WarmSandbox) -> None:
    names = ["a b", "c::d", "[e]", "PASSED", "\u00e9 - x"]
    tests = f"import pytest\n@pytest.mark.parametrize('x', {names})\ndef test_p(x):\n    pass\n"
    ids = [f"t/test_p.py::test_p[{name}]" for name in ("a b", "c::d", "[e]", "PASSED", "\\xe9 - x")]
    run = await run_tests(sandbox, {"t/test_p.py": tests}, ids)
    assert run.passed == tuple(ids)


async def test_thousands_of_ids_are_fine(sandbox: WarmSandbox) -> None:
    tests = "import pytest\n@pytest.mark.parametrize('x', range(3000))\ndef test_p(x):\n    assert x != 7\n"
    ids = [f"test_p.py::test_p[{number}]" for number in range(3000)]
    run = await run_tests(sandbox, {"test_p.py": tests}, ids)
    assert (len(run.passed), run.failed, run.alarms) == (2999, ("test_p.py::test_p[7]",), ())


async def test_only_the_wanted_tests_run_and_a_missing_one_is_missing(sandbox: WarmSandbox) -> None:
    tests = "def test_a():\n    pass\ndef test_b():\n    raise SystemExit\n"
    run = await run_tests(sandbox, {"test_p.py": tests}, ["test_p.py::test_a", "test_p.py::test_none", "gone.py::test_a"])
    assert (run.passed, run.failed, run.is_complete) == (("test_p.py::test_a",), (), True)


async def test_a_file_that_does_not_load_spoils_no_other(sandbox: WarmSandbox) -> None:
    ids = [*IDS, "test_p.py::test_a"]
    run = await run_tests(sandbox, {"solution.py": RIGHT, "test_p.py": "import missing\ndef test_a():\n    pass\n"}, ids)
    assert (run.passed, run.is_complete, run.alarms) == (tuple(IDS), True, ())
    assert "ModuleNotFoundError" in run.output


async def test_fixtures_classes_and_packages_work(sandbox: WarmSandbox) -> None:
    tests = """
import logging
import unittest
import dataclasses
import pytest
from .support import VALUE
from src.solution import f

@dataclasses.dataclass
class Point:
    x: int

class TestGroup:
    def test_method(self, tmp_path, monkeypatch, capsys, caplog):
        with (tmp_path / "x").open("w") as file:
            logging.warning("hello")
            file.write("1")
        assert (tmp_path / "x").read_text() == "1"
        assert caplog.messages == ["hello"]
        assert f(Point(VALUE).x) == 2

class TestOld(unittest.TestCase):
    def test_old(self):
        self.assertEqual(f(1), 2)

def test_floats():
    assert 0.1 + 0.2 == pytest.approx(0.3)
    assert [] == [] and {} == {}

@pytest.mark.xfail
def test_unexpected():
    pass
"""
    tree = {"tests/__init__.py": "", "tests/support.py": "VALUE = 1\n", "src/__init__.py": "", "src/solution.py": RIGHT}
    names = ["TestGroup::test_method", "TestOld::test_old", "test_floats"]
    ids = [f"tests/test_x.py::{name}" for name in names]
    run = await run_tests(sandbox, tree | {"tests/test_x.py": tests}, [*ids, "tests/test_x.py::test_unexpected"])
    assert (run.passed, run.failed, run.alarms) == (tuple(ids), ("tests/test_x.py::test_unexpected",), ())


async def test_a_protected_conftest_is_loaded_and_no_other(sandbox: WarmSandbox) -> None:
    tree = {
        "tests/conftest.py": "import pytest\n@pytest.fixture\ndef two():\n    return 2\n",
        "conftest.py": PASSING_HOOK,
        "tests/test_x.py": "from solution import f\ndef test_x(two):\n    assert f(1) == two\n",
        "solution.py": WRONG,
    }
    ids = ["tests/test_x.py::test_x"]
    for solution, passed in ((WRONG, ()), (RIGHT, tuple(ids))):
        async with sandbox.workspace(tree | {"solution.py": solution}) as workspace:
            run = await workspace.run_tests(ids, TIMEOUT_S, ["tests/conftest.py"])
        assert (run.passed, run.alarms) == (passed, ())


async def test_bytecode_of_the_tree_is_not_read(sandbox: WarmSandbox) -> None:
    make = (
        f"import py_compile, os\nopen('x.py', 'w').write({RIGHT!r})\n"
        "stamp = os.stat('solution.py')\nos.utime('x.py', (stamp.st_atime, stamp.st_mtime))\n"
        "py_compile.compile('x.py', '__pycache__/solution.cpython-%d%d.pyc' % __import__('sys').version_info[:2])\n"
    )
    wrong = WRONG.ljust(len(RIGHT))
    async with sandbox.workspace({"test_solution.py": TESTS, "solution.py": wrong, "make.py": make}) as workspace:
        assert (await workspace.run("python3 make.py", TIMEOUT_S)).exit_code == 0
        assert (await workspace.run_tests(IDS, TIMEOUT_S)).passed == ()


async def test_dead_statements_are_counted_inside(sandbox: WarmSandbox) -> None:
    source = "import os\n\n\ndef f(x):\n    x = x\n    return x\n"
    async with sandbox.workspace({}) as workspace:
        assert await workspace.count_dead_statements({"x.py": ""}, {"x.py": source}) == 2
        for bomb in ("(" * 100_000, "-" * 100_000 + "1", "[" * 90 + "]" * 90, "\0", "x = " + "a." * 60_000 + "b"):
            assert await workspace.count_dead_statements({}, {"x.py": bomb}) in (0, 1)


async def test_a_nano_verdict_is_cheap(sandbox: WarmSandbox) -> None:
    before, number = sandbox.core_s, 8
    await asyncio.gather(*(status(sandbox, {"solution.py": RIGHT}) for _ in range(number)))
    assert (sandbox.core_s - before) / number < 0.1


async def test_a_closed_workspace_leaves_no_process(sandbox: WarmSandbox) -> None:
    started = time.monotonic()
    async with sandbox.workspace({"test_solution.py": TESTS, "solution.py": "import time\ntime.sleep(1000)\n"}) as workspace:
        task = asyncio.create_task(workspace.run_tests(IDS, 1000.0))
        await asyncio.sleep(0.2)
        task.cancel()
    assert time.monotonic() - started < 10
