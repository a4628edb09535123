"""The one place where the runtime catches whatever a handler raises."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from gagar.errors import BadRecordError, UnavailableError


class HandlerBugError(Exception):
    """A handler raised what is neither a bad record nor an outage; the text is its traceback."""


@contextmanager
def guarded() -> Iterator[None]:
    """Around a stage's own code: BadRecordError and UnavailableError pass, anything else becomes a HandlerBugError."""
    try:
        yield
    except (BadRecordError, UnavailableError):
        raise
    except Exception as error:
        raise HandlerBugError(traceback.format_exc()) from error
