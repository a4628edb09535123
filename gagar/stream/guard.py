"""The one place where the runtime catches whatever a handler raises."""

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from gagar.errors import BadRecordError, ClusterRefusalError, MachineError, UnavailableError
from gagar.processes.storage import lack_of


class HandlerBugError(Exception):
    """A handler raised what is neither a bad record nor an outage; the text is its traceback."""


@contextmanager
def guarded() -> Iterator[None]:
    """Around a stage's own code.

    BadRecordError and UnavailableError pass; so do MachineError and ClusterRefusalError, which end the stage. A full or
    read-only disk becomes a MachineError. Anything else becomes a HandlerBugError, a cancellation that nobody asked this task
    for included.
    """
    try:
        yield
    except (BadRecordError, UnavailableError, MachineError, ClusterRefusalError):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise HandlerBugError(traceback.format_exc()) from error
    except Exception as error:
        if lack := lack_of(error, trusts_text=False):
            raise MachineError(f"{lack}; make room and start the stage again") from error
        raise HandlerBugError(traceback.format_exc()) from error
