"""Every mutant of the stage runtime still applies to the source, wherever its function has moved."""

from pathlib import Path

import pytest

from tests.mutants.breaking import Mutant, Source, StaleMutantError
from tests.mutants.killers import FILES, ROOT, locate, paths
from tests.mutants.table import MUTANTS

MODULE = '''
class Lane:
    def run(self, at):
        """Doc."""
        while at:  # a comment
            self.step( at )
            at -= 1
        return [self.step(at), self.step(0)]

def run(): ...
'''


def broken(tmp_path: Path, function: str, old: str, new: str) -> str:
    (tmp_path / "gagar/room").mkdir(parents=True)
    (tmp_path / "gagar/room/lane.py").write_text(MODULE)
    (tmp_path / "gagar/other.py").write_text("def run(): ...")
    return Source(tmp_path).broken(Mutant("a rule", function, old, new)).text


@pytest.fixture(scope="module")
def source() -> Source:
    return Source(ROOT)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule.replace(" ", "-"))
def test_the_mutant_applies_and_its_killer_exists(source: Source, mutant: Mutant) -> None:
    broken = source.broken(mutant)
    compile(broken.text, broken.path, "exec")
    assert locate(mutant.killer) or not mutant.killer


def test_the_files_that_kill_exist() -> None:
    assert len(set(paths())) == len(FILES)


def test_statements_are_found_by_what_they_mean_and_not_by_how_they_are_written(tmp_path: Path) -> None:
    old, new = "self.step(at)\nat = at", "at = 0"
    with pytest.raises(StaleMutantError, match=r"mutant 'a rule': expected once in Lane.run, got 0 times"):
        broken(tmp_path / "1", "Lane.run", old, new)
    text = broken(tmp_path / "2", "Lane.run", "\n        self.step(at)\n        at -= 1\n        ", new)
    assert "while at:\n            at = 0\n" in text


def test_an_expression_is_replaced_within_its_statement(tmp_path: Path) -> None:
    assert "return [self.step(at), None]" in broken(tmp_path, "Lane.run", "self.step(0)", "None")


def test_a_snippet_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StaleMutantError, match=r"expected once in Lane\.run, got 2 times: self\.step"):
        broken(tmp_path, "Lane.run", "self.step(at)", "None")


def test_a_function_that_is_gone_or_means_several_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StaleMutantError, match=r"expected one function Lane\.walk, got none"):
        broken(tmp_path / "1", "Lane.walk", "x", "y")
    with pytest.raises(StaleMutantError, match=r"expected one function run, got gagar/other.py, gagar/room/lane.py"):
        broken(tmp_path / "2", "run", "...", "pass")
    assert "def run():\n    pass" in broken(tmp_path / "3", "other.run", "...", "pass")
