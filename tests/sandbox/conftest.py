"""A real bubblewrap sandbox for the tests of this folder. A machine without one skips them, except in CI."""

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gagar.errors import MachineError
from gagar.sandbox.bubblewrap import BubblewrapSandbox
from gagar.sandbox.kinds import Bubblewrap

LIMITS = Bubblewrap(
    memory_bytes=1 << 30,
    processes=40,
    file_bytes=64 << 20,
    disk_bytes=32 << 20,
    disk_files=500,
    output_bytes=8 << 10,
    tree_bytes=1 << 20,
    tree_files=50,
)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sandbox() -> AsyncIterator[BubblewrapSandbox]:
    """One warm server for all tests: none of them may be able to harm it."""
    opened = BubblewrapSandbox(LIMITS, concurrency=2)
    try:
        await opened.open()
    except MachineError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield opened
    await opened.close()
