"""Demonstrations of the agent protocol on nano exercises: one message that writes the solution by a shell command and submits.

In: a seed. Out: `Demonstration`s of training exercises. Style (clean, dead code, an edit outside the task) is drawn
independently of correctness, so that a policy trained on them leaves room for both to be learned.
"""

import re
from collections.abc import Iterator
from random import Random
from typing import Literal

import msgspec

from gagar.nano.families import FAMILIES
from gagar.nano.inputs import INPUTS, Parameter
from gagar.nano.tasks import (
    SOLUTION_PATH,
    Exercise,
    draw_exercise,
    draw_value,
    mistaken_expressions,
    result_of,
    solution,
)

Style = Literal["clean", "dead code", "outside"]
STYLES: tuple[Style, ...] = ("clean", "dead code", "outside")

SHARE_CORRECT = 0.42
_SHARE_WRONG_VALUE = 0.15
"""Of the wrong demonstrations: the right form with a value off."""

DEAD_CODE_BEFORE = ("t = 0", "{x} = {x}", "pass", "{x}", "import os")
"""Statements before the return that change nothing; `{x}` is the argument."""
DEAD_CODE_AFTER = ("return None", "{x} = 0")
"""Statements that are never reached."""
OUTSIDE = ("echo '# x' >> util.py", "echo done >> notes.md", "cp sol.py old.py", "echo done > log.txt")
"""Commands that touch what the task does not name."""


_ANSWER = re.compile(
    rf"```bash\ncat > {re.escape(SOLUTION_PATH)} <<'E'\n(?P<code>.*?\n)E\n(?P<extra>.+\n)?submit\n```", re.DOTALL
)


class Demonstration(msgspec.Struct, frozen=True, kw_only=True):
    """One exercise and one answer to it."""

    exercise: Exercise
    answer: str
    """The assistant's whole message."""
    is_correct: bool
    style: Style


def answer(solution_text: str, extra_command: str = "") -> str:
    """The message that writes the file and submits."""
    extra = f"{extra_command}\n" if extra_command else ""
    return f"```bash\ncat > {SOLUTION_PATH} <<'E'\n{solution_text}E\n{extra}submit\n```"


def parse_answer(text: str) -> tuple[str, str] | None:
    """Solution and extra command of a message in the form of `answer`, none if it has another form."""
    match = _ANSWER.fullmatch(text.strip())
    if match is None or "\n" in (match["extra"] or "").strip():
        return None
    return match["code"], (match["extra"] or "").strip()


def _in_style(rng: Random, text: str, argument_name: str, style: Style) -> str:
    if style == "outside":
        return answer(text, rng.choice(OUTSIDE))
    if style == "dead code":
        statement = rng.choice((*DEAD_CODE_BEFORE, *DEAD_CODE_AFTER))
        line = f"    {statement.format(x=argument_name)}\n"
        head, body = text.split("\n", 1)
        text = f"{head}\n{body}{line}" if statement in DEAD_CODE_AFTER else f"{head}\n{line}{body}"
    return answer(text)


def _off(rng: Random, exercise: Exercise) -> str:
    """The right form with one value changed a little, or its two values swapped; held-out values stay unseen."""
    parameters = dict(exercise.parameters)
    if len(parameters) == 2 and rng.random() < 0.3:
        first, second = parameters
        parameters = {first: parameters[second], second: parameters[first]}
    else:
        name = rng.choice(sorted(parameters))
        parameters[name] = _near(rng, exercise, name)
    return exercise.form.expression.format_map(parameters)


def _near(rng: Random, exercise: Exercise, name: str) -> Parameter:
    """Of several values of the training part the one most like the right one."""
    right = exercise.parameters[name]
    values = [draw_value(rng, exercise.family, name, "train") for _ in range(12)]
    different = [value for value in values if value != right] or [draw_value(rng, exercise.family, name, "train")]
    if isinstance(right, int):
        return min(different, key=lambda value: abs(int(value) - right))
    return max(different, key=lambda value: sum(x == y for x, y in zip(str(value), right, strict=True)))


def _differs(rng: Random, exercise: Exercise, expression: str) -> bool:
    """Whether some argument shows the expression to be wrong."""
    name, draw = exercise.family.argument, INPUTS[exercise.family.inputs]
    for _ in range(12):
        argument = draw(rng, exercise.parameters)
        if result_of(name, expression, argument) != result_of(name, exercise.expression, argument):
            return True
    return False


def _wrong_expression(rng: Random, exercise: Exercise) -> str:
    while True:
        wants_value = rng.random() < _SHARE_WRONG_VALUE
        expression = _off(rng, exercise) if wants_value else rng.choice(mistaken_expressions(exercise))
        if _differs(rng, exercise, expression):
            return expression


def draw_demonstration(rng: Random) -> Demonstration:
    """A demonstration of a random exercise with training values."""
    exercise = draw_exercise(rng, rng.choice(FAMILIES), "train")
    is_correct = rng.random() < SHARE_CORRECT
    expression = exercise.expression if is_correct else _wrong_expression(rng, exercise)
    style = rng.choice(STYLES)
    name = exercise.family.argument
    return Demonstration(
        exercise=exercise,
        answer=_in_style(rng, solution(name, expression), name, style),
        is_correct=is_correct,
        style=style,
    )


def demonstrations(seed: int = 0) -> Iterator[Demonstration]:
    """Demonstrations for ever, the same ones for the same seed."""
    rng = Random(f"nano demonstrations {seed}")
    while True:
        yield draw_demonstration(rng)
