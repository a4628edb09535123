"""How a process logs: lines for people, or JSON; libraries that repeat themselves are thinned out."""

import logging
import sys
import time
from collections.abc import Callable
from typing import Literal, TextIO

import msgspec

LogFormat = Literal["text", "json"]

SPARSE = ("aiokafka", "kafka")
"""Loggers that tell the same thing many times a second while a broker is down."""
SPARSE_S = 10.0


class SparseFilter(logging.Filter):
    """Lets a message of a `SPARSE` logger through once in `SPARSE_S`, with the number of those kept back since."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in SPARSE:
            return True
        key = (record.name, str(record.msg))
        told_at, num_kept_back = self._seen.get(key, (float("-inf"), 0))
        now = self._clock()
        if now - told_at < SPARSE_S:
            self._seen[key] = (told_at, num_kept_back + 1)
            return False
        self._seen[key] = (now, 0)
        if num_kept_back:
            record.msg = f"{record.getMessage()} (and {num_kept_back} times before)"
            record.args = ()
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def configure_logs(log_format: LogFormat = "text", stream: TextIO | None = None) -> None:
    """Sets up the root logger of this process, once: INFO of ours, WARNING of libraries."""
    handler = logging.StreamHandler(stream or sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    handler.addFilter(SparseFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for package in ("gagar", "topology", "producers", "consumers"):
        logging.getLogger(package).setLevel(logging.INFO)
    # Warns of each tenth of a second that a busy machine holds its loop up; ours is watched by the loop monitor.
    logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)
