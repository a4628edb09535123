"""How an attempt ends: a small family of exceptions, raised where it happens and turned into a status in one place."""

from gagar.records import TrajectoryStatus


class AttemptEnd(Exception):
    """Ends the loop; its text is for people."""

    status: TrajectoryStatus = "failed"
    infrastructure: bool = False


class Submitted(AttemptEnd):
    """The agent called `submit`."""

    status: TrajectoryStatus = "completed"


class LimitReached(AttemptEnd):
    """Turns or tokens are used up."""

    status: TrajectoryStatus = "truncated"


class AgentTooSlow(AttemptEnd):
    """The agent's own work has used up its own time."""

    status: TrajectoryStatus = "timeout"


class DeadlinePassed(AttemptEnd):
    """The request's deadline has come before the agent's own time was used up: it had to wait for too long."""

    status: TrajectoryStatus = "timeout"
    infrastructure = True


class AgentFault(AttemptEnd):
    """The agent's own fault."""


class InfrastructureFault(AttemptEnd):
    """Sandbox or engine are down; whether to try again is the caller's decision."""

    infrastructure = True
