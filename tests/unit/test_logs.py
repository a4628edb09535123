"""How a process logs."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gagar.processes.logs import SPARSE_S, LogFormat, SparseFilter, configure_logs


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Puts the root logger back as it was."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], level = before
    root.setLevel(level)


def logged(log_format: LogFormat = "text") -> io.StringIO:
    stream = io.StringIO()
    configure_logs(log_format, stream)
    return stream


def test_ours_is_told_from_info_on_and_libraries_from_warning_on() -> None:
    stream = logged()
    logging.getLogger("gagar.stream").info("group closed group=%s", "g7")
    logging.getLogger("consumers.gatherer").info("yes")
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("trouble")
    logging.getLogger("kafka.net.selector").warning("Task ran for 0.2s")
    lines = [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == ["INFO gagar.stream group closed group=g7", "INFO consumers.gatherer yes", "WARNING some.library trouble"]


def test_json_holds_the_message_and_the_traceback() -> None:
    stream = logged("json")
    try:
        raise ZeroDivisionError("a bug")
    except ZeroDivisionError:
        logging.getLogger("gagar").exception("handler failed key=%s", "k")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["message"]) == ("error", "gagar", "handler failed key=k")
    assert "ZeroDivisionError: a bug" in line["error"]


def record(name: str, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "", 0, message, args, None)


def test_a_library_that_repeats_itself_is_thinned_out_and_counted() -> None:
    now = 0.0
    sparse = SparseFilter(lambda: now)
    told = [sparse.filter(record("aiokafka", "no connection to %s", node)) for node in range(5)]
    assert told == [True, False, False, False, False]
    assert sparse.filter(record("aiokafka", "another message"))
    now = SPARSE_S
    later = record("aiokafka", "no connection to %s", 9)
    assert sparse.filter(later)
    assert later.getMessage() == "no connection to 9 (and 4 times before)"


def test_our_own_lines_are_never_kept_back() -> None:
    sparse = SparseFilter(lambda: 0.0)
    assert all(sparse.filter(record("gagar.stream", "same")) for _ in range(3))
