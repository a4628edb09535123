"""Who waits for the planned end is not misled by a sampler that is away for a moment, nor by a broker that is."""

from pathlib import Path

import pytest

from gagar.config import Run
from gagar.errors import UnavailableError
from tests.runs import make_run
from topology.planned_end import NUM_LOOKS, wait_for_end


class Looks:
    """What is found, look by look: at the end, not, or no answer."""

    def __init__(self, *found: bool | None) -> None:
        self.left = list(found)

    async def look(self, run: Run) -> bool:
        found = self.left.pop(0)
        if found is None:
            raise UnavailableError("cluster: expected an answer, got none")
        return found


async def test_the_end_is_what_several_looks_in_a_row_find(tmp_path: Path) -> None:
    looks = Looks(False, *[True] * (NUM_LOOKS - 1), False, *[True] * NUM_LOOKS)
    await wait_for_end(make_run(tmp_path), 0.0, looks.look)
    assert looks.left == []


async def test_a_broker_that_is_gone_is_waited_for_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks(*[True] * (NUM_LOOKS - 1), None, *[True] * NUM_LOOKS)
    await wait_for_end(make_run(tmp_path), 0.0, looks.look)
    assert looks.left == []
    assert "planned end not looked for run=test error=cluster: expected an answer" in caplog.text
