"""A log is followed line by line while it grows."""

from pathlib import Path
from tempfile import NamedTemporaryFile

from hypothesis import given
from hypothesis import strategies as st

from gagar.processes import log_tail
from gagar.processes.log_tail import LogTail


def test_a_file_that_is_not_there_yet_has_no_lines(tmp_path: Path) -> None:
    assert LogTail(tmp_path / "log").new_lines() == []


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    path.write_bytes(b"one\ntw")
    assert tail.new_lines() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\nthree")
    assert tail.new_lines() == ["two"]
    assert tail.rest() == ["three"]
    assert tail.rest() == []


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff!\n")
    assert LogTail(tmp_path / "log").new_lines() == ["\N{REPLACEMENT CHARACTER}!"]


@given(data=st.lists(st.sampled_from([b"a", b"\n", b"\xc3\xa9"]), max_size=30).map(b"".join), size=st.integers(1, 9))
def test_any_reading_in_pieces_gives_the_lines_of_the_whole(data: bytes, size: int) -> None:
    with NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        lines = read_in_pieces(Path(file.name), size)
    expected = [line.decode("utf-8", "replace") for line in data.split(b"\n")]
    assert lines == (expected[:-1] if not data or data.endswith(b"\n") else expected)


def read_in_pieces(path: Path, size: int) -> list[str]:
    before, log_tail.MAX_READ_BYTES = log_tail.MAX_READ_BYTES, size
    try:
        return LogTail(path).rest()
    finally:
        log_tail.MAX_READ_BYTES = before
