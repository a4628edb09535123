"""The report of a test run, read with distrust."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.sandbox.protocol import TestRun
from gagar.sandbox.results import Expected, read_report

EXPECTED = Expected(test_ids=["t.py::a", "t.py::b"], canary="test_canary", nonce="n0nce")
A, B = {"test": "t.py::a", "passed": True}, {"test": "t.py::b", "passed": True}
CANARY = {"test": "t.py::test_canary", "passed": False}
END = {"end": "n0nce"}


def read(*lines: object) -> TestRun:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return read_report(text, EXPECTED, is_timeout=False, output="", duration_s=1.0)


def test_a_good_report() -> None:
    run = read(A, B | {"passed": False}, CANARY, END)
    assert run == TestRun(passed=("t.py::a",), failed=("t.py::b",), is_complete=True, duration_s=1.0)


def test_an_unfinished_report_is_not_complete() -> None:
    run = read(A, B, CANARY)
    assert (run.passed, run.is_complete, run.alarms) == (("t.py::a", "t.py::b"), False, ())


@pytest.mark.parametrize(
    ("lines", "alarm"),
    [
        ((A, B, CANARY | {"passed": True}, END), "t.py: the test that must fail passed"),
        ((A, B, END), "t.py: the test that must fail was not run"),
        ((A, A, B, CANARY, END), "t.py::a: reported 2 times"),
        ((A, B, CANARY, {"end": "other"}), "forged end of the report"),
        ((A, B, CANARY, END, B), "line after the end of the report"),
        (("PASSED t.py::a", A, B, CANARY, END), "malformed line in the report"),
        (({"test": "t.py::a", "passed": 1}, B, CANARY, END), "malformed line in the report"),
        (({"test": "t.py::a", "extra": 1}, B, CANARY, END), "malformed line in the report"),
        (({}, A, B, CANARY, END), "forged end of the report"),
        ((A, B, CANARY, {"alarm": "odd"}, END), "odd"),
    ],
)
def test_what_is_wrong_is_an_alarm(lines: tuple[object, ...], alarm: str) -> None:
    assert alarm in read(*lines).alarms


def test_a_file_without_any_passed_test_needs_no_canary() -> None:
    assert read(A | {"passed": False}, END).alarms == ()


def test_tests_that_nobody_asked_for_do_not_count() -> None:
    assert read(A, {"test": "t.py::c", "passed": True}, CANARY, END).passed == ("t.py::a",)


@given(st.text())
def test_no_report_raises(report: str) -> None:
    run = read_report(report, EXPECTED, is_timeout=False, output="", duration_s=0.0)
    assert not run.is_complete
    assert len(run.alarms) <= 20
