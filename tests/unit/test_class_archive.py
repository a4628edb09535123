"""One archive of classes for each Java and list of jars; none does no harm."""

from pathlib import Path

import pytest

from gagar.broker.class_archive import JAVA_LINK, LINK, WRITTEN, keep_archive, link_archive, reading_options, writing_options


@pytest.fixture
def java(tmp_path: Path) -> Path:
    java = tmp_path / "java"
    java.touch()
    return java


def make_scratch(tmp_path: Path, java: Path, name: str, jars: tuple[str, ...] = ("a.jar", "b.jar")) -> Path:
    """Of a broker that is about to start."""
    (tmp_path / "cache").mkdir(exist_ok=True)
    scratch = tmp_path / name / "tmp"
    scratch.mkdir(parents=True)
    link_archive(scratch, java, [tmp_path / "cache" / jar for jar in jars])
    return scratch


def test_what_one_broker_writes_in_the_end_the_next_one_reads(tmp_path: Path, java: Path) -> None:
    first = make_scratch(tmp_path, java, "first")
    assert reading_options(first) == []
    assert writing_options(first)[0] == f"-XX:ArchiveClassesAtExit=tmp/{WRITTEN}"
    (first / WRITTEN).write_bytes(b"classes")
    keep_archive(first)
    assert not (first / WRITTEN).exists()
    next_one = make_scratch(tmp_path, java, "next")
    assert reading_options(next_one)[0] == f"-XX:SharedArchiveFile=tmp/{LINK}"
    assert writing_options(next_one) == []
    assert (next_one / LINK).read_bytes() == b"classes"
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".jsa"]


def test_another_java_or_other_jars_have_another_archive(tmp_path: Path, java: Path) -> None:
    scratch = make_scratch(tmp_path, java, "first")
    (scratch / WRITTEN).write_bytes(b"classes")
    keep_archive(scratch)
    assert reading_options(make_scratch(tmp_path, java, "others", ("a.jar", "c.jar"))) == []
    java.unlink()
    java.write_bytes(b"newer")
    assert reading_options(make_scratch(tmp_path, java, "newer")) == []


def test_a_broker_that_was_killed_has_written_nothing(tmp_path: Path, java: Path) -> None:
    scratch = make_scratch(tmp_path, java, "killed")
    keep_archive(scratch)
    assert list((tmp_path / "cache").iterdir()) == []


def test_where_nothing_can_be_kept_nothing_is_written(tmp_path: Path, java: Path) -> None:
    scratch = make_scratch(tmp_path, java, "first")
    (scratch / WRITTEN).write_bytes(b"classes")
    (tmp_path / "cache").rmdir()
    keep_archive(scratch)
    assert not (scratch / WRITTEN).exists()
    assert writing_options(scratch) == []


DUMPING = """#!/bin/sh
[ "$1" = -Xshare:dump ] || exit 2
echo "java's own" > "${2#-XX:SharedArchiveFile=}"
exit 0
"""


def test_a_java_without_an_archive_of_its_own_classes_is_made_to_write_one_once(tmp_path: Path, java: Path) -> None:
    java.write_text(DUMPING)
    java.chmod(0o755)
    first = make_scratch(tmp_path, java, "first")
    assert reading_options(first)[0] == f"-XX:SharedArchiveFile=tmp/{JAVA_LINK}"
    assert writing_options(first)[0] == f"-XX:ArchiveClassesAtExit=tmp/{WRITTEN}"
    (first / WRITTEN).write_bytes(b"classes")
    keep_archive(first)
    java.chmod(0o644)
    assert reading_options(make_scratch(tmp_path, java, "next"))[0] == f"-XX:SharedArchiveFile=tmp/{JAVA_LINK}:tmp/{LINK}"


def test_a_java_that_fails_to_write_one_has_none_and_leaves_nothing(tmp_path: Path, java: Path) -> None:
    java.write_text(DUMPING.replace("exit 0", "exit 1"))
    java.chmod(0o755)
    assert reading_options(make_scratch(tmp_path, java, "first")) == []
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_java_with_an_archive_of_its_own_classes_writes_no_other(tmp_path: Path) -> None:
    (tmp_path / "lib" / "server").mkdir(parents=True)
    (tmp_path / "lib" / "server" / "classes.jsa").touch()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(DUMPING)
    java.chmod(0o755)
    assert reading_options(make_scratch(tmp_path, java, "first")) == []
    assert list((tmp_path / "cache").iterdir()) == []
