"""A scan ends at the present ends, or tells that the log fell silent before."""

from collections.abc import Sequence

import pytest

from gagar.errors import UnavailableError
from gagar.stream.memory.transport import MemoryReader, MemoryTransport
from gagar.stream.readers import watched
from gagar.stream.readers.scans import scan_transport
from gagar.stream.transport import Partition, RawRecord
from tests.builders import make_request
from tests.contract.world import REQUESTS, MemoryWorld, write

MAX_POLLS = 200


class SilentTransport(MemoryTransport):
    """The fetchers of its readers have died: time goes on, and nothing comes."""

    seconds = 0.0
    num_polls = 0

    async def open_reader(self, partitions: Sequence[Partition], /, *, is_single: bool = False) -> MemoryReader:
        reader = await super().open_reader(partitions)
        reader.poll = self._poll  # type: ignore[method-assign]
        return reader

    async def _poll(self, timeout_s: float, max_records: int, /) -> list[RawRecord]:
        self.seconds += timeout_s
        self.num_polls += 1
        if self.num_polls > MAX_POLLS:
            raise TimeoutError("the scan never ends")
        return []


@pytest.mark.parametrize(("follow", "expected"), [(False, UnavailableError), (True, TimeoutError)])
async def test_a_scan_whose_reader_dies_in_silence_fails_but_one_that_follows_waits_on(
    monkeypatch: pytest.MonkeyPatch, follow: bool, expected: type[Exception]
) -> None:
    world = MemoryWorld(num_partitions=1)
    transport = SilentTransport(world.log)
    monkeypatch.setattr(watched, "time", type("Clock", (), {"monotonic": staticmethod(lambda: transport.seconds)}))
    await write(world, [make_request()])
    with pytest.raises(expected, match=r"scan of rollout-requests: expected an answer within 45 s, got none|never ends"):
        [delivery async for delivery in scan_transport(transport, [REQUESTS], follow=follow)]
