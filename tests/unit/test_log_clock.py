"""The log's time on a host: as the brokers tell it, whatever the host's own clock says."""

import logging

import pytest

from gagar.stream.lanes.reducing import StreamTime
from gagar.stream.log_clock import MAX_SKEW_S, LogClock


class Host:
    """A host whose clocks a test sets; the log's time is `monotonic + 500`."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self.monotonic = 100.0
        self.skew_s = skew_s
        self.clock = LogClock(lambda: self.monotonic, lambda: self.monotonic + 500.0 + self.skew_s)


def test_before_the_first_record_there_is_no_time_and_stream_time_stands_still() -> None:
    host = Host(3600.0)
    stream_time = StreamTime(host.clock.now)
    assert (host.clock.now(), stream_time.now([])) == (0.0, 0.0)
    host.clock.note_read(600.0)
    assert stream_time.now([]) == 600.0


@pytest.mark.parametrize("skew_s", [-600.0, 3600.0])
def test_it_goes_on_from_the_freshest_record_whatever_the_host_says(skew_s: float) -> None:
    host = Host(skew_s)
    host.clock.note_read(590.0)
    assert host.clock.now() == 590.0, "too early by the age of the record"
    host.clock.note_read(599.9)
    host.clock.note_read(300.0)
    host.monotonic += 10.0
    assert host.clock.now() == pytest.approx(609.9)
    host.skew_s += 3600.0
    assert host.clock.now() == pytest.approx(609.9)


def test_a_record_is_told_by_the_hosts_monotonic_clock() -> None:
    host = Host(3600.0)
    host.clock.note_written(600.0)
    assert host.clock.note_read(580.0) == 80.0


@pytest.mark.parametrize(("skew_s", "told"), [(-600.0, "600 s behind"), (3600.0, "3600 s ahead"), (MAX_SKEW_S - 1, "")])
def test_a_host_whose_clock_is_off_is_told_of_once(caplog: pytest.LogCaptureFixture, skew_s: float, told: str) -> None:
    host = Host(skew_s)
    with caplog.at_level(logging.WARNING):
        host.clock.note_read(500.0)
        assert not caplog.records, "an old record tells nothing of the clock"
        for _ in range(2):
            host.clock.note_written(600.0)
    assert len(caplog.records) == bool(told)
    assert told in caplog.text
