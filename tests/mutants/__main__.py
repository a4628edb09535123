"""`python -m tests.mutants [WORD]`: breaks the rules of the table (those that name WORD) one by one, in a copy of the source.

Runs the fast tests on each and prints which fail; exits with 1 if a mutant survives. Takes minutes: for people, not for CI.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("gagar", "topology", "producers", "consumers", "tests", "pyproject.toml", "README.md", "ARCHITECTURE.md")
UNIT = (
    "deaths",
    "learner_deaths",
    "lane",
    "frontier",
    "units",
    "reading",
    "budget",
    "reducing",
    "grouping",
    "memory",
    "learner_queue",
    "sourcing",
)
CONTRACT = ("effects", "reducers", "sources", "journals")
MAX_FAILURES = 3
LIMIT_S = 300.0


class Fate(NamedTuple):
    """What the tests said."""

    failed: list[str]
    is_over_time: bool
    took_s: float
    output: str


def main() -> None:
    """See the module."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutant for mutant in MUTANTS if word in f"{mutant.rule} {mutant.file}"]
    survivors = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = copied(Path(directory) / "copy")
        for mutant in chosen:
            source_with(copy, mutant)  # all are sound before the first one is run
        fate = run_tests(copy)
        if fate.failed or fate.is_over_time:
            raise SystemExit(f"unchanged source: expected all tests to pass, got {fate.failed}\n{fate.output[-4000:]}")
        print(f"| {'rule that is broken':<72} | fail | s | first failing test |\n|---|---|---|---|")  # noqa: T201
        for mutant in chosen:
            fate = tried(copy, mutant)
            survivors += not (fate.failed or fate.is_over_time)
            print(row(mutant, fate), flush=True)  # noqa: T201
    print(f"{len(chosen)} mutants, {survivors} survived")  # noqa: T201
    raise SystemExit(1 if survivors else 0)


def copied(copy: Path) -> Path:
    """A copy of the source, nothing else of the checkout."""
    copy.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, copy / name)
    return copy


def source_with(copy: Path, mutant: Mutant) -> str:
    """The text of the mutant's file, changed."""
    text = (copy / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.file}: expected once, got {text.count(mutant.old)} times; bring tests/mutants/table.py up to date: "
            f"{mutant.rule}\n{mutant.old}"
        )
    return text.replace(mutant.old, mutant.new)


def tried(copy: Path, mutant: Mutant) -> Fate:
    """Runs the tests on a mutant, and mends it."""
    path = copy / mutant.file
    sound, broken = path.read_text(encoding="utf-8"), source_with(copy, mutant)
    path.write_text(broken, encoding="utf-8")
    try:
        return run_tests(copy)
    finally:
        path.write_text(sound, encoding="utf-8")


def run_tests(copy: Path) -> Fate:
    """The fast tests, up to a few failures."""
    files = [f"tests/unit/test_{name}.py" for name in UNIT] + [f"tests/contract/test_{name}.py" for name in CONTRACT]
    options = ["-v", "-m", "not broker", f"--maxfail={MAX_FAILURES}", "--show-capture=no", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *options, *files]
    began, is_over_time = time.monotonic(), False
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
        output = (done.stdout + done.stderr).decode()
    except subprocess.TimeoutExpired as error:
        output, is_over_time = (error.stdout or b"").decode(), True
    failed = re.findall(r"^(tests/\S+) (?:FAILED|ERROR)", output, re.MULTILINE)
    assert is_over_time or failed or done.returncode == 0, output[-4000:]
    return Fate(failed, is_over_time, time.monotonic() - began, output)


def row(mutant: Mutant, fate: Fate) -> str:
    """A line of the table."""
    num_failed = f"{len(fate.failed)}{'+' if len(fate.failed) >= MAX_FAILURES or fate.is_over_time else ''}"
    first = fate.failed[0].removeprefix("tests/") if fate.failed else "time" if fate.is_over_time else "NONE: it survives"
    return f"| {mutant.rule:<72} | {num_failed:>4} | {fate.took_s:.0f} | {first} |"


if __name__ == "__main__":
    main()
