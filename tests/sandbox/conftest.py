"""Real sandboxes for the tests of this folder, one kind after the other. A machine without one skips them, except in CI."""

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gagar.errors import MachineError
from gagar.sandbox.kinds import Bubblewrap, Landlock
from gagar.sandbox.warm_sandbox import WarmSandbox

LIMITS: dict[str, Any] = {
    "memory_bytes": 1 << 30,
    "processes": 40,
    "file_bytes": 64 << 20,
    "disk_bytes": 32 << 20,
    "disk_files": 500,
    "output_bytes": 8 << 10,
    "tree_bytes": 1 << 20,
    "tree_files": 50,
}


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=[Bubblewrap, Landlock], ids=["bubblewrap", "landlock"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[WarmSandbox]:
    """One sandbox for all tests of its kind: none of them may be able to harm it."""
    opened: WarmSandbox = request.param(**LIMITS).make(2)
    try:
        await opened.open()
    except MachineError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield opened
    await opened.close()
