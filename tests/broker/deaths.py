"""Where a real process can be told to die: the points of the way from a take-over to the end of a commit.

`arm("<point>:<n>")`: the process sends itself SIGKILL when it comes to the point for the n-th time.
"""

import asyncio
import functools
import os
import signal
from collections.abc import Callable
from typing import Any

from gagar.stream.journal import LogJournal
from gagar.stream.kafka import client as kafka

GAP_S = 0.003
"""From a commit's answer to a moment within the gap before the next transaction."""
CLIENT: Any = vars(kafka)["aiokafka"].AIOKafkaProducer
POINTS: dict[str, tuple[Any, str, str]] = {
    # the take-over: the producer has started; where to read from is known
    "fenced": (kafka.KafkaTransport, "start_producer", "after"),
    "read": (kafka.KafkaMembership, "committed", "after"),
    "sought": (LogJournal, "seek", "after"),
    # the transaction: nothing is begun; nothing is sent; all is handed over and no answer looked at; all answers are in
    "begin": (kafka.KafkaProducer, "begin", "before"),
    "send": (kafka.KafkaProducer, "send", "before"),
    "sent": (kafka.Answer, "__await__", "before"),
    "commit": (kafka.KafkaProducer, "commit", "before"),
    # its end: offsets are part of it; it is committed and nothing is made of that; between two transactions
    "offsets": (CLIENT, "commit_transaction", "before"),
    "answer": (CLIENT, "commit_transaction", "after"),
    "gap": (kafka.KafkaProducer, "commit", "later"),
}
"""Class, method, and when of its call."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(death: str) -> None:
    """See the module."""
    point, _, count = death.partition(":")
    owner, name, when = POINTS[point]
    is_next = Countdown(int(count))
    original = getattr(owner, name)
    make = _armed_await if name == "__await__" else _armed
    setattr(owner, name, functools.wraps(original)(make(original, when, is_next)))


class Countdown:
    """True at the n-th call."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self) -> bool:
        self._left -= 1
        return self._left == 0


def _armed(original: Callable[..., Any], when: str, is_next: Callable[[], bool]) -> Callable[..., Any]:
    async def armed(*args: Any, **named: Any) -> Any:
        is_last = is_next()  # others count on while this one waits
        if is_last and when == "before":
            die()
        result = await original(*args, **named)
        if is_last and when == "after":
            die()
        if is_last:
            asyncio.get_running_loop().call_later(GAP_S, die)
        return result

    return armed


def _armed_await(original: Callable[..., Any], when: str, is_next: Callable[[], bool]) -> Callable[..., Any]:
    def armed(*args: Any) -> Any:
        if is_next():
            die()
        return original(*args)

    return armed
