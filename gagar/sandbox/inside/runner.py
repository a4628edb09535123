"""The test session: started before any candidate is known and parked in its collection; a forked child takes it up from there.

In: the request that a TestProcess carries. Out: JSON lines over a descriptor of the launcher's own, one for each test as
it ends, alarms, and an end mark with the nonce of the request. Not promised: that code which hunts through this process
cannot write the same lines.
"""

import json
import os
import sys
import tempfile
import types
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from gagar.sandbox.inside.processes import REPORT
from gagar.sandbox.inside.twins import load_tests
from gagar.sandbox.inside.workspace import ROOT, TestProcess

# Left out: what writes files, talks to a terminal, or takes the time of a small test run without changing a result.
BLOCKED = (
    *("cacheprovider", "terminal", "junitxml", "pastebin", "stepwise", "doctest", "setuponly", "setupplan"),
    *("faulthandler", "unraisableexception", "threadexception"),
)
ARGUMENTS = (
    *("-c", "/dev/null", f"--rootdir={ROOT}", f"--confcutdir={ROOT}", "--import-mode=importlib", "--assert=plain", "-s"),
    *("--noconftest", "--continue-on-collection-errors", *(f"-pno:{name}" for name in BLOCKED)),
)
MAX_EXPLANATION = 2000
WARM_UP = """
import pytest

@pytest.fixture
def one():
    yield 1

@pytest.mark.parametrize("value", [1, 2])
def test_value(one, value, capsys, monkeypatch, tmp_path):
    with pytest.raises(ZeroDivisionError):
        one / 0
    assert value == one
"""


def run_session(park: Callable[[], None]) -> None:
    """Starts the session and calls `park`, which serves until it raises TestProcess in a child."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    _warm_up()
    os._exit(int(pytest.main([*ARGUMENTS, ROOT], plugins=[Runner(park)])))


def _warm_up() -> None:
    """Runs a small test file, so that all that pytest imports at its first test is there."""
    file = Path(tempfile.gettempdir(), "test_warm_up.py")
    file.write_text(WARM_UP)
    pytest.main([*ARGUMENTS, str(file)])
    file.unlink()


class Runner:
    """Our plugin: parks the session, replaces what it collects, reports."""

    def __init__(self, park: Callable[[], None]) -> None:
        self._park = park
        self._sources: dict[str, str] = {}
        self._wanted: set[Path] = set()
        self._expected: frozenset[str] = frozenset()
        self._canary = ""
        self._failed: set[str] = set()
        self._nonce = ""
        self._write = os.write

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        nulls = _null_descriptors()
        try:
            self._park()
        except TestProcess as process:
            request = process.request
        _reopen(nulls)
        self._nonce, self._canary = request["nonce"], request["canary"]
        self._expected = frozenset(request["ids"])
        files = list(dict.fromkeys(name.partition("::")[0] for name in request["ids"]))
        # Read before a line of the candidate's has run.
        self._sources = {file: Path(ROOT, file).read_text(encoding="utf-8") for file in files if Path(ROOT, file).is_file()}
        session.config.args = list(self._sources)
        session.config.option.tbstyle = "short"
        # The only way to change after the start what `--noconftest` said.
        session.config.pluginmanager._noconftest = not request["conftests"]
        self._wanted = {Path(ROOT, part) for file in self._sources for part in (file, *map(str, Path(file).parents))}
        sys.path.append(ROOT)

    def _say(self, **line: Any) -> None:
        self._write(REPORT, json.dumps(line).encode() + b"\n")

    def _alarm(self, text: str) -> None:
        self._say(alarm=text)

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool:
        return collection_path not in self._wanted

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Dir:
        # Never a Package: that would import the candidate's __init__.py in the name of the tests.
        return pytest.Dir.from_parent(parent, path=path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module:
        file = module_path.relative_to(ROOT).as_posix()
        return MemoryModule.from_parent(
            parent, path=module_path, source=self._sources[file], canary=self._canary, alarm=self._alarm
        )

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._expected or item.name == self._canary]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._explain(report.nodeid, report.longreprtext)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed" or hasattr(report, "wasxfail"):
            self._failed.add(report.nodeid)
            if not report.nodeid.endswith(self._canary):
                self._explain(report.nodeid, report.longreprtext)
        if report.when == "teardown":
            self._say(test=report.nodeid, passed=report.nodeid not in self._failed)

    def _explain(self, name: str, text: str) -> None:
        print(f"{name}: {text[-MAX_EXPLANATION:]}", flush=True)  # noqa: T201

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        result = yield
        self._say(end=self._nonce)
        sys.stdout.flush()
        # Nothing of the candidate's runs any more: no exit hook, no finalizer.
        os._exit(0)
        return result


def _null_descriptors() -> list[int]:
    """What the session has open on /dev/null (its log file); a child has lost it."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
    return [number for number in numbers if os.path.realpath(f"/proc/self/fd/{number}") == "/dev/null"]


def _reopen(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        null = os.open("/dev/null", os.O_WRONLY)
        if null != descriptor:
            os.dup2(null, descriptor, inheritable=False)
            os.close(null)


class MemoryModule(pytest.Module):
    """A test file that is never imported from the tree."""

    def __init__(self, *, source: str, canary: str, alarm: Callable[[str], None], **rest: Any) -> None:
        super().__init__(**rest)
        self._source, self._canary, self._alarm = source, canary, alarm

    def _getobj(self) -> types.ModuleType:
        package = _package_of(self.path)
        name = f"{self.path.stem}_{self._canary}"
        module = types.ModuleType(f"{package}.{name}" if package else name)
        module.__file__ = str(self.path)
        module.__package__ = package
        sys.modules[module.__name__] = module
        try:
            load_tests(self._source, str(self.path), module, self._canary, self._alarm)
        except Exception as error:
            raise self.CollectError(f"{type(error).__name__}: {error}") from error
        return module


def _package_of(path: Path) -> str:
    """Dotted name of the package that a test file lies in, for its relative imports; empty if it lies in none."""
    names: list[str] = []
    folder = path.parent
    while folder != Path(ROOT) and (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)
