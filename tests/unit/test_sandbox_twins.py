"""Traps in protected test files."""

import types
from typing import Any
from unittest.mock import ANY

import pytest

from gagar.sandbox.inside.twins import Comparison, load_tests


class Everything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class EveryList(list[int]):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


def compare(left: object, right: object) -> tuple[Any, list[str]]:
    alarms: list[str] = []
    return Comparison(alarms.append)(left, right), alarms


@pytest.mark.parametrize(
    "value", [1, "x", None, [], {}, (), [1, [2]], {"a": (1, "b")}, {1, 2}, float("inf"), pytest.approx(1.0)]
)
def test_equal_values_raise_no_alarm(value: object) -> None:
    assert compare(1.0 if value == 1.0 else value, value) == (True, [])


@pytest.mark.parametrize(
    ("left", "right"),
    [(Everything(), 4), (4, Everything()), ([Everything()], [4]), ({"a": [Everything()]}, {"a": [4]}), (EveryList(), [])],
)
def test_a_value_equal_to_everything_raises_the_alarm(left: object, right: object) -> None:
    assert compare(left, right) == (True, ["a value is equal to what it cannot be equal to"])


def test_unequal_values_stay_unequal() -> None:
    assert compare(1, 2) == (False, [])


def load(source: str) -> tuple[types.ModuleType, list[str]]:
    alarms: list[str] = []
    module = types.ModuleType("memory")
    load_tests(source, "t.py", module, "test_canary", alarms.append)
    return module, alarms


def test_the_canary_fails_and_the_tests_stay() -> None:
    module, _ = load("def test_a():\n    assert 1 == 1, 'why'\n\n\nif True:\n    x = 1")
    module.test_a()
    with pytest.raises(AssertionError):
        module.test_canary()


def test_assertions_keep_their_message_and_order() -> None:
    module, _ = load(
        "seen = []\ndef test_a():\n    assert seen.append(1) == seen.append(2), 'why'\n    assert 1 == 2, f'{seen}'\n"
    )
    with pytest.raises(AssertionError, match=r"\[1, 2\]"):
        module.test_a()


def test_the_twin_is_tried_in_assertions() -> None:
    module, alarms = load("def check(x):\n    assert x == 4\n")
    module.check(Everything())
    assert alarms


def test_an_assertion_about_any_is_left_alone() -> None:
    source = "from unittest import mock\nfrom unittest.mock import ANY\ndef check(x):\n"
    module, alarms = load(source + "    assert x == ANY\n    assert mock.ANY == x\n")
    module.check(ANY)
    assert alarms == []


def test_a_broken_test_file_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        load("def test_a(:\n")
