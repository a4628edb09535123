"""What an agent is there for: the port between the loop and what it knows nothing of: tasks, patches, verdicts."""

from typing import Protocol

import msgspec

from gagar.records import Message
from gagar.sandbox.protocol import Workspace
from gagar.tasks.patches import Tree


class AgentLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent may use."""

    max_turns: int = 1
    """Most completions of one rollout."""
    max_new_tokens: int = 1024
    """Most tokens of one completion."""
    command_timeout_s: float = 60.0
    """Seconds that one command may take."""
    temperature: float = 1.0
    """Temperature of the sampling."""


class Role(Protocol):
    """One agent's part: how it begins, what it may use, what its submission is."""

    @property
    def limits(self) -> AgentLimits: ...

    @property
    def tree(self) -> Tree:
        """Files of its workspace at the start."""

    def messages(self) -> list[Message]:
        """The chat up to where the agent speaks first."""

    async def result(self, workspace: Workspace, /) -> str:
        """What the agent leaves, asked for when it submits. Raises WorkspaceError if the workspace cannot be read."""
