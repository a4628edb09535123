"""`python -m tests.mutants [WORD]`: breaks the rules of the table (those that name WORD) one by one, in copies of the source.

Runs the fast tests on each and prints the first that fails; exits with 1 if a mutant survives. Takes minutes: for people, not
for CI. The unchanged source has to pass the same tests, more thorough here than in the suite: see `--thorough`.
"""

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutants.breaking import Mutant, Source
from tests.mutants.killers import locate, paths
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).parents[2]
COPIED = ("gagar", "topology", "producers", "consumers", "tests", "pyproject.toml", "README.md", "ARCHITECTURE.md")
NUM_COPIES = 2
LIMIT_S = 900.0
OPTIONS = ("-v", "-x", "-m", "not broker", "--show-capture=no", "-p", "no:cacheprovider")


class Trial(NamedTuple):
    """What the tests said."""

    failed: str
    """The first test that failed; empty if all passed."""
    took_s: float
    output: str


def main() -> None:
    """See the module."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutant for mutant in MUTANTS if word in f"{mutant.rule} {mutant.function}"]
    source = Source(ROOT)
    for mutant in chosen:
        source.broken(mutant)  # all are up to date before the first one is run
    with tempfile.TemporaryDirectory() as directory:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(NUM_COPIES):
            copies.put(copied(Path(directory) / str(number)))
        with ThreadPoolExecutor(NUM_COPIES) as pool:
            unchanged = pool.submit(tried, copies, None)
            runs = [(mutant, pool.submit(tried, copies, mutant)) for mutant in chosen]
            survivors = [mutant for mutant, run in runs if not shown(mutant, run.result()).failed]
            if unchanged.result().failed:
                raise SystemExit(f"unchanged source: expected all tests to pass, got {unchanged.result().output[-4000:]}")
    print(f"{len(chosen)} mutants, {len(survivors)} survived")  # noqa: T201
    raise SystemExit(1 if survivors else 0)


def shown(mutant: Mutant, run: Trial) -> Trial:
    """Prints a line of the table."""
    print(f"| {mutant.rule:<72} | {run.took_s:3.0f} s | {run.failed or 'NONE: IT SURVIVES'} |", flush=True)  # noqa: T201
    return run


def copied(copy: Path) -> Path:
    """A copy of the source, nothing else of the checkout."""
    copy.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, copy / name)
    return copy


def tried(copies: "queue.SimpleQueue[Path]", mutant: Mutant | None) -> Trial:
    """Runs the tests on a mutant, and mends it; without one, on the source as it is."""
    copy = copies.get()
    try:
        if mutant is None:
            return run_tests(copy, ["--thorough", *paths()])
        broken = Source(copy).broken(mutant)
        path = copy / broken.path
        sound = path.read_text(encoding="utf-8")
        path.write_text(broken.text, encoding="utf-8")
        try:
            return run_mutant(copy, mutant)
        finally:
            path.write_text(sound, encoding="utf-8")
    finally:
        copies.put(copy)


def run_mutant(copy: Path, mutant: Mutant) -> Trial:
    """The likely killer first, the rest if the mutant survives it, and all of them thoroughly if it survives those."""
    took_s = 0.0
    for tests in (locate(mutant.killer), paths(), ["--thorough", *paths()]):
        trial = run_tests(copy, tests) if tests else Trial("", 0.0, "")
        took_s += trial.took_s
        if trial.failed:
            break
    return trial._replace(took_s=took_s)


def run_tests(copy: Path, tests: Sequence[str]) -> Trial:
    """Up to the first failure."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *OPTIONS, *tests]
    began = time.monotonic()
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode()
        return Trial(f"over time: {output.splitlines()[-1:]}", time.monotonic() - began, output)
    output = (done.stdout + done.stderr).decode()
    failed = re.findall(r"^(tests/\S+) (?:FAILED|ERROR)", output, re.MULTILINE)
    assert failed or done.returncode == 0, output[-4000:]
    return Trial(failed[0].removeprefix("tests/") if failed else "", time.monotonic() - began, output)


if __name__ == "__main__":
    main()
