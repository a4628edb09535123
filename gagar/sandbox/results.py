"""What a test process said, read with distrust: JSON lines in, a TestRun out.

A line that is none, a test that is reported twice, a canary that did not fail: each is an alarm, never an exception. What the
process printed and how it exited is not looked at.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from gagar.sandbox.protocol import TestRun

MAX_ALARMS = 20


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line: a test, an alarm or the end."""

    test: str = ""
    passed: bool = False
    alarm: str = ""
    end: str = ""


_decoder = msgspec.json.Decoder(_Line)


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was asked for."""

    test_ids: Sequence[str]
    canary: str
    """Name of the test that must fail in each file."""
    nonce: str
    """What the end mark repeats."""


def read_report(report: str, expected: Expected, *, is_timeout: bool, output: str, duration_s: float) -> TestRun:
    """The run as its report tells it."""
    told = _Told()
    for text in report.splitlines():
        told.read(text, expected.nonce)
    alarms = told.alarms + _check_tests(told.outcomes, expected, told.is_complete)
    wanted = set(expected.test_ids)
    return TestRun(
        passed=tuple(name for name, passed in told.outcomes if passed and name in wanted),
        failed=tuple(name for name, passed in told.outcomes if not passed and name in wanted),
        is_complete=told.is_complete,
        is_timeout=is_timeout,
        alarms=tuple(dict.fromkeys(alarms[:MAX_ALARMS])),
        output=output,
        duration_s=duration_s,
    )


class _Told:
    """What the lines so far have said."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[str, bool]] = []
        self.alarms: list[str] = []
        self.is_complete = False

    def read(self, text: str, nonce: str) -> None:
        try:
            line = _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            self.alarms.append("malformed line in the report")
            return
        if self.is_complete:
            self.alarms.append("line after the end of the report")
        elif line.test:
            self.outcomes.append((line.test, line.passed))
        elif line.alarm:
            self.alarms.append(line.alarm)
        elif line.end == nonce:
            self.is_complete = True
        else:
            self.alarms.append("forged end of the report")


def _check_tests(outcomes: list[tuple[str, bool]], expected: Expected, is_complete: bool) -> list[str]:
    counts = Counter(name for name, _ in outcomes)
    alarms = [f"{name}: reported {count} times" for name, count in counts.items() if count > 1]
    canaries = {name.partition("::")[0]: passed for name, passed in outcomes if name.endswith(f"::{expected.canary}")}
    alarms += [f"{file}: the test that must fail passed" for file, passed in sorted(canaries.items()) if passed]
    if is_complete:
        # A file that did not load has neither: that is a failure like any other.
        files = {name.partition("::")[0] for name, passed in outcomes if passed}
        alarms += [f"{file}: the test that must fail was not run" for file in sorted(files - canaries.keys())]
    return alarms
