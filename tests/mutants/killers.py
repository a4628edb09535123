"""The tests that are to kill the mutants: fast ones of the stage runtime, without a broker."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT = (
    "deaths",
    "learner_deaths",
    "lane",
    "frontier",
    "units",
    "reading",
    "watched",
    "budget",
    "reducing",
    "grouping",
    "memory",
    "learner_queue",
    "sourcing",
)
CONTRACT = ("effects", "reducers", "sources", "journals")
TESTS = (*(f"tests/unit/test_{name}.py" for name in UNIT), *(f"tests/contract/test_{name}.py" for name in CONTRACT))


def locate(test: str) -> list[str]:
    """Where a test, named with or without the values of its parameters, is now; empty if nowhere or if none is named."""
    if not test:
        return []
    definition = re.compile(rf"^(async )?def {re.escape(test.partition('[')[0])}\(", re.MULTILINE)
    paths = [
        path for path in sorted((ROOT / "tests").rglob("test_*.py")) if definition.search(path.read_text(encoding="utf-8"))
    ]
    return [f"{path.relative_to(ROOT)}::{test}" for path in paths]
