"""One archive of classes for each Java and list of jars; none does no harm."""

from pathlib import Path

import pytest

from gagar.broker.class_archive import LINK, WRITTEN, keep_archive, link_archive, reading_options, writing_options


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
