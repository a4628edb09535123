"""Demonstrations: the protocol's form, styles that are independent of correctness, no held-out value, wrong ones that fail."""

import ast
import re
import subprocess
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from gagar.nano.check import passes
from gagar.nano.demonstrations import (
    DEAD_CODE_AFTER,
    DEAD_CODE_BEFORE,
    OUTSIDE,
    SHARE_CORRECT,
    STYLES,
    Demonstration,
    answer,
    demonstrations,
    parse_answer,
)
from gagar.nano.tasks import NEIGHBOURS, SOLUTION_PATH, is_held_out, make_task, solution

pytestmark = pytest.mark.slow

DEMOS = list(islice(demonstrations(), 3000))


def code_of(demo: Demonstration) -> str:
    parsed = parse_answer(demo.answer)
    assert parsed is not None
    return parsed[0]


def is_passing(demo: Demonstration) -> bool:
    return passes(code_of(demo), make_task(Random(demo.exercise.statement), demo.exercise, "demonstration"))


def test_the_same_seed_gives_the_same_demonstrations_and_another_seed_others() -> None:
    assert list(islice(demonstrations(), 50)) == DEMOS[:50]
    assert list(islice(demonstrations(1), 50)) != DEMOS[:50]


def test_correct_ones_pass_and_wrong_ones_fail() -> None:
    tried = [(demo, is_passing(demo)) for demo in DEMOS[:1000]]
    assert all(is_passed for demo, is_passed in tried if demo.is_correct)
    wrong = [is_passed for demo, is_passed in tried if not demo.is_correct]
    # A few values a little off are not found by four tests.
    assert sum(wrong) <= 0.005 * len(wrong)


def test_the_share_of_correct_ones_is_the_recipe_s() -> None:
    assert sum(demo.is_correct for demo in DEMOS) / len(DEMOS) == pytest.approx(SHARE_CORRECT, abs=0.03)


@pytest.mark.parametrize("is_correct", [True, False])
def test_styles_are_thirds_whether_right_or_wrong(is_correct: bool) -> None:
    styles = Counter(demo.style for demo in DEMOS if demo.is_correct == is_correct)
    for style in STYLES:
        assert styles[style] / styles.total() == pytest.approx(1 / 3, abs=0.04)


def test_no_demonstration_shows_a_held_out_value() -> None:
    for demo in DEMOS:
        text = demo.exercise.statement + "\n" + demo.answer
        shown = {int(digits) for digits in re.findall(r"\d+", text)} - {0, 1}
        words = set(re.findall(r"'([a-z]{2})'", text))
        assert not any(is_held_out(value) for value in shown | words), text


def test_clean_ones_are_one_statement_and_dead_ones_more() -> None:
    for demo in DEMOS:
        function = ast.parse(code_of(demo)).body[-1]
        assert isinstance(function, ast.FunctionDef)
        assert (len(function.body) > 1) == (demo.style == "dead code"), demo.answer


def test_outside_ones_have_an_extra_command() -> None:
    for demo in DEMOS:
        parsed = parse_answer(demo.answer)
        assert parsed is not None
        assert (parsed[1] != "") == (demo.style == "outside")


def test_every_dead_statement_and_every_outside_command_is_shown() -> None:
    text = "\n".join(demo.answer for demo in DEMOS)
    for statement in (*DEAD_CODE_BEFORE, *DEAD_CODE_AFTER):
        assert statement.format(x="xs") in text
    assert all(command in text for command in OUTSIDE)


def test_dead_statements_change_no_result() -> None:
    for demo in DEMOS[:600]:
        if demo.is_correct and demo.style == "dead code":
            assert is_passing(demo)


def run_answer(text: str, directory: Path) -> str:
    """What bash prints when the block of `text` runs in a fresh tree, `submit` being a command that says so."""
    for path, content in NEIGHBOURS.items():
        (directory / path).write_text(content)
    block = text.removeprefix("```bash\n").removesuffix("```")
    script = "submit() { echo submitted; }\n" + block
    return subprocess.run(["bash", "-eu", "-c", script], cwd=directory, capture_output=True, text=True, check=True).stdout


def test_a_clean_answer_writes_the_solution_and_submits(tmp_path: Path) -> None:
    code = solution("s", "s.replace('ab', 'cd')")
    assert run_answer(answer(code), tmp_path) == "submitted\n"
    assert (tmp_path / SOLUTION_PATH).read_text() == code
    assert {path.name for path in tmp_path.iterdir()} == {SOLUTION_PATH, *NEIGHBOURS}


@pytest.mark.parametrize("command", OUTSIDE)
def test_an_outside_command_changes_another_file(command: str, tmp_path: Path) -> None:
    assert run_answer(answer(solution("n", "n"), command), tmp_path) == "submitted\n"
    others = {path.name: path.read_text() for path in tmp_path.iterdir() if path.name != SOLUTION_PATH}
    assert others != NEIGHBOURS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "submit",
        answer(solution("n", "n")).removesuffix("```"),
        answer(solution("n", "n")).replace("submit\n", ""),
        answer(solution("n", "n"), "echo 1\necho 2"),
        answer(solution("n", "n")).replace(SOLUTION_PATH, "other.py"),
    ],
)
def test_another_form_is_not_parsed(text: str) -> None:
    assert parse_answer(text) is None


def test_parsing_is_the_inverse_of_answering() -> None:
    for demo in DEMOS[:300]:
        parsed = parse_answer(demo.answer)
        assert parsed is not None
        assert answer(*parsed) == demo.answer
