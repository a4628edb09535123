"""The nano task set: generated small Python functions, each in a repository of a stub and two neighbours, with four tests.

In: a seed. Out: tasks, the same ones for the same seed. Values of parameters are split by their hash: a held-out task has
held-out values only, and nothing made for training (tasks, demonstrations, their mistakes) has any of them. The expressions
evaluated here are the families' own, never an agent's.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from string import Formatter
from types import CodeType
from typing import Literal

import msgspec

from gagar.nano.families import FAMILIES, Family, Form
from gagar.nano.inputs import INPUTS, LETTERS, Argument, Parameter, Parameters
from gagar.tasks.patches import make_patch
from gagar.tasks.task import Task

Part = Literal["train", "heldout"]

NUM_TASKS: dict[Part, int] = {"train": 256, "heldout": 64}
SOLUTION_PATH = "sol.py"
NEIGHBOURS = {
    "util.py": "def half(n):\n    return n // 2\n",
    "notes.md": "# Notes\n\nSmall functions, one a file.\n",
}
"""What a solution has no reason to touch."""
_TEST_PATH = "test_sol.py"
_NUM_CALLS = 4
_NUM_CANDIDATES = 24


class Exercise(msgspec.Struct, frozen=True, kw_only=True):
    """One function that is asked for. Example: `f(xs)` returns the items above 37."""

    family: Family
    form: Form
    phrase: str
    """One of the form's wordings."""
    parameters: Parameters

    @property
    def statement(self) -> str:
        wanted = self.phrase.format_map(dict(self.parameters))
        return f"{SOLUTION_PATH}: f({self.family.argument}) returns {wanted}"

    @property
    def expression(self) -> str:
        """What a right solution returns."""
        return self.form.expression.format_map(dict(self.parameters))


def is_held_out(value: Parameter) -> bool:
    """Whether no training may see `value`: a fifth of all values, by hash."""
    return hashlib.sha256(f"nano {value}".encode()).digest()[0] % 5 == 0


def draw_exercise(rng: Random, family: Family, part: Part) -> Exercise:
    """An exercise of the family whose parameter values all belong to `part`."""
    form = rng.choice(family.forms)
    names = sorted({name for _, name, _, _ in Formatter().parse(form.expression) if name})
    parameters = {name: draw_value(rng, family, name, part) for name in names}
    phrase = rng.choice((form.phrase, form.other_phrase))
    return Exercise(family=family, form=form, phrase=phrase, parameters=parameters)


def draw_value(rng: Random, family: Family, name: str, part: Part) -> Parameter:
    """A value for the placeholder `name` that belongs to `part`."""
    while True:
        value: Parameter = "".join(rng.choices(LETTERS, k=2)) if name == "a" else rng.randint(*family.numbers)
        if is_held_out(value) == (part == "heldout"):
            return value


def mistaken_expressions(exercise: Exercise) -> list[str]:
    """Expressions of other forms and slips, with the exercise's own parameters."""
    others = [form.expression for form in exercise.family.forms if form != exercise.form]
    return [text.format_map(dict(exercise.parameters)) for text in (*others, *exercise.family.slips)]


def _mutants(exercise: Exercise) -> list[str]:
    """Mistakes that the tests are chosen to find: mistaken expressions and values a little off."""
    mutants = mistaken_expressions(exercise)
    for name, value in exercise.parameters.items():
        near = (value - 1, value + 1) if isinstance(value, int) else (value[::-1], value[0] + "q")
        mutants += [exercise.form.expression.format_map({**exercise.parameters, name: off}) for off in near]
    return mutants


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<expression>", "eval")


def result_of(argument_name: str, expression: str, argument: Argument) -> object:
    """What the expression gives, or the name of the error that it ends in."""
    try:
        return eval(_compiled(expression), {argument_name: argument})
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return type(error).__name__


def _choose_calls(rng: Random, exercise: Exercise) -> list[tuple[Argument, object]]:
    """Arguments and expected results that together find the most mutants."""
    name = exercise.family.argument
    draw = INPUTS[exercise.family.inputs]
    candidates = [draw(rng, exercise.parameters) for _ in range(_NUM_CANDIDATES)]
    expected = [result_of(name, exercise.expression, argument) for argument in candidates]
    alive = set(_mutants(exercise)) - {exercise.expression}
    calls: list[tuple[Argument, object]] = []
    for _ in range(_NUM_CALLS):
        found = [
            {mutant for mutant in alive if result_of(name, mutant, argument) != result}
            for argument, result in zip(candidates, expected, strict=True)
        ]
        best = max(range(len(candidates)), key=lambda index: len(found[index]))
        calls.append((candidates.pop(best), expected.pop(best)))
        alive -= found[best]
    return calls


def solution(argument_name: str, expression: str) -> str:
    """The file of a solution that returns `expression`."""
    return f"def f({argument_name}):\n    return {expression}\n"


def _test_file(calls: Sequence[tuple[Argument, object]]) -> str:
    tests = [
        f"def test_{number}():\n    assert f({argument!r}) == {result!r}\n"
        for number, (argument, result) in enumerate(calls, start=1)
    ]
    return "\n\n".join(["from sol import f\n", *tests])


def make_task(rng: Random, exercise: Exercise, task_id: str) -> Task:
    """The exercise as a task: a stub to fill, neighbours to leave alone, one test for each chosen call."""
    name = exercise.family.argument
    calls = _choose_calls(rng, exercise)
    tree = {SOLUTION_PATH: f"def f({name}):\n    raise NotImplementedError\n", **NEIGHBOURS}
    return Task(
        task_id=task_id,
        statement=exercise.statement,
        tree=tree,
        tests={_TEST_PATH: _test_file(calls)},
        fail_to_pass=[f"{_TEST_PATH}::test_{number}" for number in range(1, _NUM_CALLS + 1)],
        scope=[SOLUTION_PATH],
        reference_patch=make_patch(tree, {**tree, SOLUTION_PATH: solution(name, exercise.expression)}),
    )


def _distinct_exercises(rng: Random, part: Part) -> Iterator[Exercise]:
    """Exercises of all families in turn, no statement twice, for ever."""
    seen: set[str] = set()
    while True:
        for family in FAMILIES:
            exercise = draw_exercise(rng, family, part)
            while exercise.statement in seen:
                exercise = draw_exercise(rng, family, part)
            seen.add(exercise.statement)
            yield exercise


def make_tasks(part: Part, seed: int = 0) -> list[Task]:
    """The tasks of a part, in a mixed order."""
    rng = Random(f"nano tasks {part} {seed}")
    exercises = [exercise for exercise, _ in zip(_distinct_exercises(rng, part), range(NUM_TASKS[part]), strict=False)]
    rng.shuffle(exercises)
    return [
        make_task(rng, exercise, f"nano-{part}-{number:03d}-{exercise.family.name}")
        for number, exercise in enumerate(exercises)
    ]


def tasks_as_lines(part: Part, seed: int = 0) -> bytes:
    """The part's JSON Lines file."""
    return msgspec.json.Encoder().encode_lines(make_tasks(part, seed))


def write_tasks(directory: Path, seed: int = 0) -> None:
    """Writes `train.jsonl` and `heldout.jsonl`."""
    directory.mkdir(parents=True, exist_ok=True)
    for part in NUM_TASKS:
        (directory / f"{part}.jsonl").write_bytes(tasks_as_lines(part, seed))
