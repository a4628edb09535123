"""The first Java that is new enough is taken."""

from pathlib import Path

import pytest

from gagar.broker.java import choose_java, parse_version, version_of
from gagar.errors import UnavailableError

OLD, NEW, BROKEN = Path("/old/java"), Path("/new/java"), Path("/broken/java")
VERSIONS = {OLD: 11, NEW: 25, BROKEN: None}


def test_an_old_system_java_gives_way_to_the_wheel() -> None:
    assert choose_java([OLD, NEW], VERSIONS.get) == NEW


def test_a_java_that_cannot_run_is_passed_over() -> None:
    assert choose_java([BROKEN, NEW], VERSIONS.get) == NEW


def test_the_first_that_will_do_is_taken() -> None:
    assert choose_java([Path("/17/java"), NEW], {Path("/17/java"): 17, NEW: 25}.get) == Path("/17/java")


def test_without_any_the_way_out_is_named() -> None:
    with pytest.raises(UnavailableError, match=r"java: expected version 17 .*, got none; install gagar-rl\[local\]"):
        choose_java([], VERSIONS.get)
    with pytest.raises(UnavailableError, match=r"got /old/java \(11\), /broken/java \(not runnable\)"):
        choose_java([OLD, BROKEN], VERSIONS.get)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "25" 2025-09-16 LTS', 25),
        ('java version "1.8.0_402"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2"', 21),
        ("bash: java: command not found", None),
    ],
)
def test_versions_are_read_in_their_old_and_new_form(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_a_program_that_is_missing_or_fails_has_no_version(tmp_path: Path) -> None:
    assert version_of(tmp_path / "java") is None
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'version \"17.0.1\"'\nexit 1\n")
    failing.chmod(0o755)
    assert version_of(failing) is None
