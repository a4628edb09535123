"""`gagar up`: its options and its printing."""

import re

import pytest

from gagar.cli.up import Printer, parse_scales
from gagar.errors import ConfigError


def test_scales_are_numbers_by_stage() -> None:
    assert parse_scales(["verifier=4", "grader=0"]) == {"verifier": 4, "grader": 0}
    assert parse_scales([]) == {}


@pytest.mark.parametrize("scale", ["verifier", "verifier=", "verifier=-1", "verifier=two", "verifier=9999"])
def test_a_scale_of_another_form_is_refused(scale: str) -> None:
    with pytest.raises(ConfigError, match=rf"--scale {scale}: expected stage=n with n from 0 to 1024"):
        parse_scales([scale])


def test_lines_bear_their_process_and_repeats_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer()
    for name, text in [("verifier", "down"), ("verifier", "down"), ("grader", "x"), ("verifier", "down"), ("verifier", "up")]:
        printer.line(name, text)
    printed = [re.sub(r"\x1b\[\d+m", "", line).split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert printed == [["verifier", "down"], ["grader", "x"], ["verifier", "(the same 2 more times)"], ["verifier", "up"]]
