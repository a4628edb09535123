"""What the nano tests call a function with: arguments near its parameters, so that a mistake shows.

In: a random source and the parameters of a task. Out: one argument, a plain Python value whose `repr` is its source.
"""

from collections.abc import Callable, Mapping
from random import Random

Parameter = int | str
Parameters = Mapping[str, Parameter]
Argument = int | str | list[int] | list[str]

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _numbers(parameters: Parameters) -> list[int]:
    return [value for value in parameters.values() if isinstance(value, int)]


def _words(parameters: Parameters) -> list[str]:
    return [value for value in parameters.values() if isinstance(value, str)]


def _around(rng: Random, parameters: Parameters) -> Argument:
    """Items at, beside and far from the parameter."""
    k = rng.choice(_numbers(parameters))
    near = [k - 1, k, k, k + 1, k + 10, k - 10]
    return [rng.choice(near) if rng.random() < 0.6 else rng.randint(0, 120) for _ in range(rng.randint(4, 7))]


def _multiples(rng: Random, parameters: Parameters) -> Argument:
    """Items of which about half are multiples of the parameter."""
    k = rng.choice(_numbers(parameters))
    return [k * rng.randint(1, 6) if rng.random() < 0.5 else rng.randint(1, 150) for _ in range(rng.randint(4, 7))]


def _long(rng: Random, parameters: Parameters) -> Argument:
    """More items than any index parameter."""
    return [rng.randint(0, 9) for _ in range(max(_numbers(parameters)) + rng.randint(3, 28))]


def _near(rng: Random, parameters: Parameters) -> Argument:
    """A number at, beside or far from a parameter."""
    k = rng.choice(_numbers(parameters))
    return rng.choice([k, k - 1, k + 1, k * 2, k * 3 + 1, rng.randint(0, 9), rng.randint(100, 150), rng.randint(10, 99)])


def _text(rng: Random, parameters: Parameters) -> Argument:
    """Letters with the parameters' words among them, at the ends as well."""
    words = _words(parameters)
    parts = [rng.choice(words) if rng.random() < 0.5 else "".join(rng.choices(LETTERS, k=2)) for _ in range(rng.randint(2, 6))]
    return "".join(parts)


def _listed(rng: Random, parameters: Parameters) -> Argument:
    return ["".join(rng.choices(LETTERS, k=rng.randint(1, 4))) for _ in range(rng.randint(2, 5))]


def _short(rng: Random, parameters: Parameters) -> Argument:
    """A text shorter than, or a little longer than the parameter."""
    k = rng.choice(_numbers(parameters))
    return "".join(rng.choices(LETTERS, k=rng.choice([2, 5, 7, 8, k - 1, k + 2])))


def _sentence(rng: Random, parameters: Parameters) -> Argument:
    return "".join(rng.choices(LETTERS, k=max(_numbers(parameters)) + rng.randint(2, 9)))


INPUTS: Mapping[str, Callable[[Random, Parameters], Argument]] = {
    "around": _around,
    "multiples": _multiples,
    "long": _long,
    "near": _near,
    "text": _text,
    "words": _listed,
    "short": _short,
    "sentence": _sentence,
}
