"""The clock of an attempt: the agent's own time starts with its own work, and what it waits for is told apart.

In: what the attempt is at, whenever that changes. Out: seconds by what they went to, which add up to the whole; what is left
until the request's deadline, and of the agent's own time. Kept by this host's monotonic clock.
"""

import time
from typing import Literal

from gagar.records import AttemptTimes

Part = Literal["queue", "engine", "sandbox", "agent"]
"""What a second of an attempt goes to; see `gagar.records.AttemptTimes`."""


class AttemptClock:
    """Of one try at an attempt. It begins in the queue and is at one part at any moment."""

    def __init__(self, left_s: float, agent_timeout_s: float) -> None:
        """`left_s`: until the request's deadline; `agent_timeout_s`: seconds that the agent's own work may take."""
        self.started_at = time.time()
        """Unix seconds."""
        self.part: Part = "queue"
        self.agent_timeout_s = agent_timeout_s
        self._start = self._since = time.monotonic()
        self._deadline = self._start + left_s
        self._spent: dict[Part, float] = {"queue": 0.0, "engine": 0.0, "sandbox": 0.0, "agent": 0.0}

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - time.monotonic()

    @property
    def agent_left_s(self) -> float:
        """Seconds that the agent's own work may still take."""
        under_way_s = time.monotonic() - self._since if self.part == "agent" else 0.0
        return self.agent_timeout_s - self._spent["agent"] - under_way_s

    @property
    def is_agent_over(self) -> bool:
        """Of the two bounds the agent's own is the one that is, or will be, met first while it works."""
        return self.agent_left_s <= self.left_s

    def turn_to(self, part: Part) -> None:
        """From now on seconds go to `part`."""
        self._spent[self.part] += self._tick()
        self.part = part

    def end_turn(self, sampling_s: float) -> float:
        """The engine has answered: `sampling_s` of its call were the agent's own work, at most the whole call, and the rest was
        waiting. The answer is what was counted."""
        call_s = self._tick()
        own_s = min(max(sampling_s, 0.0), call_s)
        self._spent["engine"] += call_s - own_s
        self._spent["agent"] += own_s
        self.part = "agent"
        return own_s

    def times(self) -> AttemptTimes:
        """Where the seconds went up to now."""
        self.turn_to(self.part)
        return AttemptTimes(**{f"{part}_s": seconds for part, seconds in self._spent.items()})

    @property
    def duration_s(self) -> float:
        """From the begin to the last change of the part."""
        return self._since - self._start

    def _tick(self) -> float:
        """Seconds since the last tick."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        return seconds
