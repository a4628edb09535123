"""The tests that are to kill the mutants: fast ones of the stage runtime, without a broker."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = (
    *("frontier", "units", "reading", "watched", "budget", "grouping", "memory", "learner_queue", "sourcing"),
    *("effects", "reducers", "sources", "journals", "lane", "reducing"),
    *("letters", "deaths", "learner_deaths", "gathering", "admission"),
)
"""Quick ones first: a mutant is dead at the first failure."""


def paths() -> list[str]:
    """The files, wherever they are."""
    found = {path.stem: path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path.parent.name != "broker"}
    return [str(found[f"test_{name}"].relative_to(ROOT)) for name in FILES]


def locate(test: str) -> list[str]:
    """Where a test, named with or without the values of its parameters, is now; empty if nowhere or if none is named."""
    if not test:
        return []
    definition = re.compile(rf"^(async )?def {re.escape(test.partition('[')[0])}\(", re.MULTILINE)
    paths = [
        path for path in sorted((ROOT / "tests").rglob("test_*.py")) if definition.search(path.read_text(encoding="utf-8"))
    ]
    return [f"{path.relative_to(ROOT)}::{test}" for path in paths]
