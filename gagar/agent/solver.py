"""The solver: the role that writes a patch for a task."""

import asyncio

from gagar.agent.role import AgentLimits
from gagar.records import Message
from gagar.sandbox.protocol import Workspace
from gagar.tasks.patches import Tree, make_patch
from gagar.tasks.task import Task

MAX_INLINE_CHARS = 64 << 10
"""A tree up to this size is compared on the event loop."""


class Solver:
    """Implements `gagar.agent.role.Role`: the statement first, the difference of the trees at the end."""

    def __init__(self, task: Task, limits: AgentLimits, system_prompt: str = "") -> None:
        """`system_prompt`: empty for no system message."""
        self.limits = limits
        self._task = task
        self._system_prompt = system_prompt

    @property
    def tree(self) -> Tree:
        return self._task.tree

    def messages(self) -> list[Message]:
        system = [Message(role="system", content=self._system_prompt)] if self._system_prompt else []
        return [*system, Message(role="user", content=self._task.statement)]

    async def result(self, workspace: Workspace) -> str:
        """The patch from the task's tree to the workspace's."""
        tree = await workspace.read_tree()
        if sum(map(len, tree.values())) <= MAX_INLINE_CHARS:
            return make_patch(self._task.tree, tree)
        return await asyncio.to_thread(make_patch, self._task.tree, tree)
