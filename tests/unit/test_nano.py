"""The nano task set: the same for the same seed, parts that share no value, tests that tell right from wrong."""

import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gagar
from gagar.config import load_run
from gagar.nano.check import num_passed, passes
from gagar.nano.families import FAMILIES
from gagar.nano.tasks import (
    NEIGHBOURS,
    NUM_TASKS,
    SOLUTION_PATH,
    Part,
    draw_exercise,
    is_held_out,
    make_task,
    make_tasks,
    mistaken_expressions,
    result_of,
    solution,
    tasks_as_lines,
    write_tasks,
)
from gagar.tasks.jsonl import JsonlTasks
from gagar.tasks.patches import apply_patch
from gagar.tasks.task import Task
from topology.resources import Resources

NANO = Path(gagar.__file__).parent / "data" / "nano"
TASKS: dict[Part, list[Task]] = {"train": make_tasks("train"), "heldout": make_tasks("heldout")}
ALL_TASKS = [*TASKS["train"], *TASKS["heldout"]]
PARTS: tuple[Part, ...] = ("train", "heldout")


def values_in(text: str) -> set[int | str]:
    """Numbers above 1 and quoted two-letter words: all that a statement or an expression says of parameters."""
    numbers = {int(digits) for digits in re.findall(r"\d+", text)} - {0, 1}
    return numbers | set(re.findall(r"'([a-z]{2})'", text))


@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_its_number_of_tasks_and_no_statement_twice(part: Part) -> None:
    assert len({task.statement for task in TASKS[part]}) == len({task.task_id for task in TASKS[part]}) == NUM_TASKS[part]


@pytest.mark.parametrize("part", PARTS)
def test_the_same_seed_gives_the_same_tasks_and_another_seed_others(part: Part) -> None:
    assert make_tasks(part) == TASKS[part]
    assert make_tasks(part, seed=1) != TASKS[part]


@pytest.mark.parametrize("part", PARTS)
def test_the_shipped_files_are_what_the_generator_makes(part: Part) -> None:
    shipped = (NANO / f"{part}.jsonl").read_bytes()
    assert shipped == tasks_as_lines(part), "run `gagar sft policy --recipe nano` after a change of the generator"


@pytest.mark.parametrize("part", PARTS)
def test_every_family_is_in_every_part(part: Part) -> None:
    assert {task.task_id.split("-")[-1] for task in TASKS[part]} == {family.name for family in FAMILIES}


def test_train_and_held_out_statements_share_no_value() -> None:
    seen = {part: set().union(*(values_in(task.statement) for task in TASKS[part])) for part in PARTS}
    assert not seen["train"] & seen["heldout"]
    assert not any(is_held_out(value) for value in seen["train"])
    assert all(is_held_out(value) for value in seen["heldout"])


def test_about_a_fifth_of_the_values_are_held_out() -> None:
    assert 0.1 < sum(is_held_out(value) for value in range(2, 100)) / 98 < 0.3


def test_every_reference_solution_passes_and_every_stub_fails_all_tests() -> None:
    for task in ALL_TASKS:
        solved = apply_patch(task.tree, task.reference_patch)
        assert passes(solved[SOLUTION_PATH], task), task.task_id
        assert num_passed(task.tree[SOLUTION_PATH], task) == 0, task.task_id


def test_a_reference_touches_only_the_scope() -> None:
    for task in ALL_TASKS:
        solved = apply_patch(task.tree, task.reference_patch)
        assert {path for path in solved if solved[path] != task.tree.get(path)} == set(task.scope) == {SOLUTION_PATH}
        assert NEIGHBOURS.items() <= task.tree.items()


def test_tests_are_no_part_of_the_tree() -> None:
    assert not any(task.tests.keys() & task.tree.keys() for task in ALL_TASKS)


@given(seed=st.integers(0, 10_000), number=st.integers(0, len(FAMILIES) - 1), part=st.sampled_from(PARTS))
def test_mistakes_of_the_family_fail(seed: int, number: int, part: Part) -> None:
    exercise = draw_exercise(Random(seed), FAMILIES[number], part)
    task = make_task(Random(seed), exercise, "x")
    name = exercise.family.argument
    failed = [not passes(solution(name, wrong), task) for wrong in mistaken_expressions(exercise)]
    assert passes(solution(name, exercise.expression), task)
    assert all(failed), (exercise.statement, mistaken_expressions(exercise))


@given(seed=st.integers(0, 10_000), part=st.sampled_from(PARTS))
def test_the_values_of_an_exercise_are_all_of_its_part(seed: int, part: Part) -> None:
    rng = Random(seed)
    exercise = draw_exercise(rng, rng.choice(FAMILIES), part)
    assert {is_held_out(value) for value in exercise.parameters.values()} == {part == "heldout"}
    assert set(exercise.parameters.values()) >= values_in(exercise.expression)


def test_a_result_is_a_value_or_the_name_of_an_error() -> None:
    assert result_of("n", "n + 1", 2) == 3
    assert result_of("n", "1 // n", 0) == "ZeroDivisionError"
    assert result_of("xs", "xs[9]", [1]) == "IndexError"


def test_written_task_files_load(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    write_tasks(directory)
    for part in PARTS:
        assert JsonlTasks(directory / f"{part}.jsonl").all() == TASKS[part]


def test_the_nano_run_file_names_the_shipped_files() -> None:
    run = load_run(NANO / "run.toml")
    assert Resources(run).tasks.train.ids == JsonlTasks(NANO / "train.jsonl").ids
    assert Resources(run).tasks.heldout.ids == JsonlTasks(NANO / "heldout.jsonl").ids
    assert run.resolve(run.policy.path) == NANO / "policy"
